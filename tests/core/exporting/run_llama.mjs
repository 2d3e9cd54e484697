// node run_llama.mjs NODE_MODULES MODEL.gguf QUESTIONS.json: by llama.cpp, token ids of the texts,
// and probabilities after a prompt and its greedy continuation, if there is one, as a line of JSON.
import fs from "node:fs";
import path from "node:path";
import {pathToFileURL} from "node:url";

const [modules, file, questionsFile] = process.argv.slice(2);
const entry = path.join(modules, "node-llama-cpp", "dist", "index.js");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry));
const questions = JSON.parse(fs.readFileSync(questionsFile, "utf-8"));
// Threads that wait for each other spin, and take the cores of other tests.
const settings = {gpu: false, build: "never", progressLogs: false, logLevel: LlamaLogLevel.error, maxThreads: 1};
const llama = await getLlama(settings);
const model = await llama.loadModel({modelPath: file});

const texts = questions.texts.map((text) => [...model.tokenize(text, true)]);
if (!questions.prompt) answer({texts});

const context = await model.createContext({contextSize: model.trainContextSize});
const sequence = context.getSequence();
const everything = {temperature: 1, topK: 0, topP: 1, minP: 0};
const ask = {generateNext: {probabilities: true, options: everything}};
const ids = questions.prompt;
const evaluated = await sequence.controlledEvaluate([...ids.slice(0, -1), [ids.at(-1), ask]]);
const byToken = evaluated[ids.length - 1].next.probabilities;
const probabilities = [];
for (let id = 0; id < byToken.size; id++) probabilities.push(byToken.get(id) ?? 0);

await sequence.clearHistory();
const continuation = [];
for await (const id of sequence.evaluate(ids, {temperature: 0})) {
    if (id === model.tokens.eos || continuation.length === questions.tokens) break;
    continuation.push(id);
}
answer({texts, probabilities, continuation});

function answer(values) {
    fs.writeSync(1, JSON.stringify(values) + "\n");
    process.exit(0);
}

// node run_pipelines.mjs NODE_MODULES QUESTIONS: answers of transformers.js's pipelines to questions
// [task, folder, prompt, settings], or the token ids of ["tokenize", folder, texts, {}], as one line
// of JSON.
import path from "node:path";
import {pathToFileURL} from "node:url";

const [modules, questions] = process.argv.slice(2);
const entry = path.join(modules, "@huggingface", "transformers", "dist", "transformers.node.mjs");
const {AutoTokenizer, env, pipeline} = await import(pathToFileURL(entry));
env.allowRemoteModels = false;
const answers = [];
for (const [task, folder, prompt, settings] of JSON.parse(questions)) {
    if (task === "tokenize") {
        const tokenizer = await AutoTokenizer.from_pretrained(folder);
        const encode = (text) => tokenizer.encode(text, {add_special_tokens: false});
        answers.push(prompt.map(encode));
        continue;
    }
    const run = await pipeline(task, folder);
    answers.push(await run(prompt, settings));
}
console.log(JSON.stringify(answers));

"""From a text to a measured model: a look at the text, a plan with reasons, and the stages."""

from core.config.pretrain import PretrainConfig
from core.pretraining.explain import Explanation, explain_automatic
from core.pretraining.look import CorpusLook, look_at
from core.pretraining.plan import PlanWarning, PretrainPlan, Setting, plan_pretraining
from core.pretraining.reading import ANY_ENCODING, readable
from core.pretraining.stages import pretrain_stages
from core.pretraining.start import run_pretraining, submit_pretraining

__all__ = [
    "ANY_ENCODING",
    "CorpusLook",
    "Explanation",
    "PlanWarning",
    "PretrainConfig",
    "PretrainPlan",
    "Setting",
    "explain_automatic",
    "look_at",
    "plan_pretraining",
    "pretrain_stages",
    "readable",
    "run_pretraining",
    "submit_pretraining",
]

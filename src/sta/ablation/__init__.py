"""The paper's ablations on any model and data: which choice of the method matters how much."""

from sta.ablation.run import Ablation
from sta.ablation.studies import STUDIES, Study, Subject, Variant, make_studies

__all__ = ["STUDIES", "Ablation", "Study", "Subject", "Variant", "make_studies"]

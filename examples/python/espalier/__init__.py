# SPDX-License-Identifier: BSL-1.0
"""Tree speculative decoding: parts on arrays, decoders over models of Python, parts of one's own, and exact proofs."""
from ._library import Error, InputError, LawError, NumericError, OptionError, lib as _lib
from .decoder import Decoder, Drafter, Event, TextModel
from .parts import (Chance, OwnVerifier, Pass, Policy, RowsOf, Tree, TreePolicy, Verifier, build, build_all, compile_trees,
                    draw, fits, policies, verifiers, verify_all)
from .proof import (Coverage, DrawnCoverage, Enumerator, TinyModel, Uniform, Uniforms, check_lossless, check_sampler,
                    check_verifier, draw_lossless, tiny_models)

__version__ = _lib.espalier_version().decode()
__all__ = [name for name in globals() if not name.startswith("_") and name not in ("decoder", "parts", "proof")]

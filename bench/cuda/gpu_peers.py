# SPDX-License-Identifier: BSL-1.0
"""Other projects' code for the same work, if a Python on this machine can import it; each runs in its own process."""

from typing import NamedTuple


class Peer(NamedTuple):
    script: str
    module: str  # Python module that it needs
    name: str  # its name in the report
    limit: int  # seconds


PEERS = [
    Peer("top_k_torch.py", "torch", "PyTorch", 120),
    Peer("round_torch.py", "torch", "PyTorch", 150),
    Peer("attention_torch.py", "torch", "PyTorch", 180),
    Peer("top_k_flashinfer.py", "flashinfer", "FlashInfer", 150),
    Peer("attention_flashinfer.py", "flashinfer", "FlashInfer", 240),
    Peer("verify_sglang.py", "sgl_kernel", "SGLang's kernels", 120),
    Peer("forward_transformers.py", "transformers", "transformers", 240),
]


def version_of(runner, python, module):
    """The version that the module gives after `import`; None if the import fails or takes a minute."""
    code = f"import {module} as m; print('version', getattr(m, '__version__', 'unknown'))"
    outcome = runner.run([python, "-c", code], 60)
    for line in outcome.text.splitlines():
        if outcome.status == 0 and line.startswith("version "):
            return line.split()[1]
    return None

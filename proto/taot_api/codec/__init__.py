"""Between messages and arrays: the only package that knows both.

Decoding checks every size against what the session declared before anything is allocated, and reports what is
wrong as `ContractError` with the path of the field.
"""

from taot_api.codec.plan import decode_plan, encode_identity, encode_plan
from taot_api.codec.report import decode_report, encode_report
from taot_api.codec.session import decode_session_spec, encode_session_spec
from taot_api.codec.tensor import decode_tensor, encode_tensor

__all__ = [
    "decode_plan",
    "decode_report",
    "decode_session_spec",
    "decode_tensor",
    "encode_identity",
    "encode_plan",
    "encode_report",
    "encode_session_spec",
    "encode_tensor",
]

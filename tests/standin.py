"""A second device without hardware: "standin" computes on the CPU, and refuses CPU tensors as CUDA does.

It is torch's PrivateUse1 backend, made in Python. A tensor on it is real memory with another device's name:
every operation is run by the CPU's own kernel on that memory, after a look at where its arguments lie. So
`.item()`, `.cpu()`, saving, autograd, autocast and fused optimizers work,
while an operation that mixes its tensors with the CPU's raises:

- a tensor of the CPU beside one of the device, but for what CUDA allows too: copies, numbers (0-dim) in
elementwise
  operations, indices within [];
- a CPU generator drawing on the device, as in `torch.randn(..., device=..., generator=...)`.

What it cannot see: the kernels themselves and which of them a GPU lacks, ranges and rounding of its fp16, its
memory, NCCL and several devices, work that is still under way when the host goes on, what asks for "cuda" by
name (attention's choice, pinned memory, torch.compile),
generators of its own (`torch.Generator("standin")`), and autocast's cache of casts.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import backend_registration

NAME = "standin"
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
CPU = torch.device("cpu")
CPU_CODE = 1
DEVICE_CODE = 12  # DLPack's numbers of the CPU and of devices it does not know

COPY = torch.ops.aten._copy_from.default
PLAIN = (int, float, bool, type(None), str, torch.dtype)
COPIES = ("_copy_from", "copy_", "_to_copy")
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
# What the host waits for on CUDA, beside copies that block: numbers of the device, and sizes that depend on
# them.
READS = ("_local_scalar_dense", "equal", "masked_select", "nonzero", "_unique2", "unique_dim")
PRODUCTS = ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm")
# What autocast computes in half precision, and what in float32, on CUDA (torch's AT_FORALL_LOWER_PRECISION_FP
# and _FP32).
IN_HALF = "conv1d conv2d conv3d conv_transpose2d.input addmm matmul mm bmm baddbmm linear einsum"
IN_HALF += " scaled_dot_product_attention"
IN_FULL = (
    "exp log pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar rsqrt reciprocal softplus layer_norm "
    "group_norm cosine_similarity "
    "mse_loss l1_loss smooth_l1_loss kl_div binary_cross_entropy_with_logits softmax.int log_softmax.int "
    "cumsum prod sum "
    "sum.dim_IntList norm.Scalar norm.ScalarOpt_dim logsumexp"
)
_libraries: list[torch.library.Library] = []  # what they register lasts as long as they do
_counted: list[list[str]] = []  # of the open `counted_waits`


class _Module(backend_registration._DummyBackendModule):
    """Module in place of `torch.standin`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_available(self) -> bool:
        return _Hooks.available

    def set_device(self, device: Any) -> None: ...

    def synchronize(self, device: Any = None) -> None: ...

    def empty_cache(self) -> None: ...

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)  # it draws from the CPU's, which is kept beside it

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None: ...


class _Hooks(backend_registration._DummyPrivateUse1Hook):
    # only within `in_use`, so that no library takes it for the machine's accelerator elsewhere
    available = False

    def is_available(self) -> bool:
        return _Hooks.available


def is_wanted(marks: str) -> bool:
    """False if a choice of tests such as "gpu and not slow" excludes it: torch would prefer it to CUDA, and
    could then not pin memory.
    """
    return "gpu" not in marks or "not gpu" in marks


def register() -> None:
    """Makes the device known to torch, once and before the first backward pass, which counts the devices."""
    if _libraries:
        return
    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=_Module(), hook=_Hooks()
    )
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_run_on_cpu, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    # Everything that reaches the device goes to the fallback, but for what torch composes of other operations
    # for any device: where the CPU has a kernel for that as a whole, it is taken.
    whole = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::") and has(n, "CPU")]
    whole = [n.removeprefix("aten::") for n in whole if any(has(n, key) for key in composite)]
    for name in (*whole, "convolution", "convolution_backward", "index_put_"):
        aten.impl(name, _direct(name), "PrivateUse1")
    for names, dtype in ((IN_HALF, None), (IN_FULL, torch.float32)):
        for name in names.split():
            aten.impl(name, _autocast(_overload(name), dtype), "AutocastPrivateUse1")
    _libraries.extend((everything, aten))


@contextmanager
def in_use() -> Iterator[None]:
    """While it is open, torch calls the device available,
    and modules keep their parameters when they move, as on CUDA.
    """
    future = torch.__future__
    swaps = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)
    _Hooks.available = True
    try:
        yield
    finally:
        future.set_swap_module_params_on_conversion(swaps)
        _Hooks.available = False


@contextmanager
def counted_waits() -> Iterator[list[str]]:
    """While it is open, operations for which the host waits for the device are listed by name."""
    waits: list[str] = []
    _counted.append(waits)
    try:
        yield waits
    finally:
        _counted.remove(waits)


def _waits(op: Any, rules: "Rules", args: tuple[Any, ...]) -> bool:
    """True if the host waits for the device on CUDA."""
    if op is COPY:
        source, target, *non_blocking = args
        return source.device != target.device and not any(non_blocking)
    if rules.indexes:
        return any(i is not None and i.dtype == torch.bool for i in args[1])
    return rules.reads


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _direct(name: str) -> Callable[..., Any]:
    found: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not found:
            found.append(_overload(name))  # a thousand of them would be slow to look up beforehand
        return _run_on_cpu(found[0], *args, **kwargs)

    return call


def _autocast(op: Any, dtype: torch.dtype | None) -> Callable[..., Any]:
    """The operation on arguments cast to `dtype`, or to the type that autocast was given."""

    def cast(value: Any) -> Any:
        if type(value) in (list, tuple):
            return [cast(v) for v in value]
        if (
            not isinstance(value, torch.Tensor)
            or not value.is_floating_point()
            or value.dtype == torch.float64
        ):
            return value
        return value.to(dtype or torch.get_autocast_dtype(NAME)) if value.device.type == NAME else value

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            return op(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

    return call


@dataclass(frozen=True)
class Rules:
    """Behaviour of an operation, and the inputs that it accepts."""

    view: bool  # gives other sizes and strides to the same memory
    copies: bool  # moves between devices
    indexes: bool  # takes indices of the CPU too
    numbers: bool  # takes 0-dim tensors of the CPU too
    product: bool
    reads: bool  # gives the device's numbers to the host


@functools.cache
def _rules(op: Any) -> Rules:
    name = op.name().partition(".")[0].removeprefix("aten::")
    shared = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
    indexes = name in INDEXING
    numbers = torch.Tag.pointwise in op.tags or name in ("fill_", "masked_fill_") or indexes
    product = name in PRODUCTS
    return Rules(shared or name == "set_", name in COPIES, indexes, numbers, product, name in READS)


def _run_on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operation: the CPU's kernel on the same memory."""
    rules = _rules(op)
    if rules.view:
        return op.redispatch(CPU_KEYS, *args, **kwargs)
    if _counted and _waits(op, rules, args):
        for waits in _counted:
            waits.append(op.name())
    lent = _Lent(op, rules)
    if rules.indexes and args[0].device.type == NAME:
        index = [i if i is None or i.device.type == "cpu" else lent.to_cpu(i) for i in args[1]]
        on_cpu = [lent.to_cpu(args[0]), index, *map(lent.to_cpu, args[2:])]
    else:
        on_cpu = [lent.to_cpu(value) for value in args]
    options = {name: lent.to_cpu(value) for name, value in kwargs.items()}
    if op is COPY:
        on_cpu[1].copy_(on_cpu[0])
        return args[1]
    return lent.back(op(*on_cpu, **options))


class _Lent:
    """An operation's arguments while the CPU works on them."""

    def __init__(self, op: Any, rules: Rules) -> None:
        self.op = op
        self.rules = rules
        # what lies on the CPU and whose it is, by its id
        self.lent: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # The CPU's own products in fp16 are ten times slower than those of fp32, which round as little.
        self.widened = False

    def to_cpu(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in (list, tuple):
            return [self.to_cpu(v) for v in value]
        if kind is torch.device:
            return CPU if value.type == NAME else value
        if kind is torch.Generator and value.device.type != NAME:
            raise RuntimeError(
                f"{self.op}: Expected a '{NAME}' device type for generator but found '{value.device.type}'"
            )
        if not isinstance(value, torch.Tensor):
            return value
        if value.device.type != NAME:
            return value if self.rules.copies else _require_number(self.op, self.rules, value)
        # What is empty may be meant to grow, which borrowed memory cannot.
        alias = (
            _retagged(value.detach(), CPU_CODE)
            if value.numel()
            else torch.empty(value.shape, dtype=value.dtype)
        )
        self.lent[id(alias)] = alias, value
        if self.rules.product and alias.dtype == torch.float16:
            self.widened = True
            return alias.float()
        return alias

    def back(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)([self.back(v) for v in value])
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in self.lent:
            alias, own = self.lent[id(value)]
            return own if alias.shape == own.shape else _grow(own, alias)
        return _retagged(value.half() if self.widened else value, DEVICE_CODE)


def _require_number(op: Any, rules: Rules, value: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU, where CUDA would take it; raises RuntimeError where it would not."""
    if rules.numbers and value.ndim == 0:
        return value
    raise RuntimeError(
        f"{op}: Expected all tensors to be on the same device, but found at least two devices, "
        f"{NAME}:0 and {value.device} (of shape {tuple(value.shape)})"
    )


def _grow(given: torch.Tensor, larger: torch.Tensor) -> torch.Tensor:
    """A tensor that an operation had to enlarge, with the new memory."""
    grown = _retagged(larger, DEVICE_CODE)
    place = (grown.untyped_storage(), 0, grown.shape, grown.stride())
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(CPU_KEYS, given, *place)
    return given


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _retagged(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """The same memory as a tensor of another device."""
    capsule = torch._C._to_dlpack(tensor)
    # struct DLTensor: void *data; struct { int32 device type; int32 device number; } …
    place = _pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
    ctypes.c_int64.from_address(place).value = device  # number 0
    return torch._C._from_dlpack(capsule)

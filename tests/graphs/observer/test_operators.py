"""What each class of operators is noted with: its tensors, its accesses, and all of it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.graphs.observer.operators import ObservedOperator
from shadowgraph.model.launches import Access
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.views import TensorView

Told = tuple[str, str, int, int]


def observed(observer: OperatorObserver, run: Callable[[], object]) -> list[ObservedOperator]:
    before = observer.latest_sequence()
    run()
    return observer.since(before)


def told(operator: ObservedOperator) -> list[Told]:
    return [(p.argument, p.access.value, p.view.start, p.view.stop) for p in operator.launch.pointers]


def seen(argument: str, access: str, tensor: torch.Tensor) -> Told:
    view = TensorView.of(tensor)
    return argument, access, view.start, view.stop


def names(operators: list[ObservedOperator]) -> list[str]:
    return [each.launch.name for each in operators]


def test_a_copy_with_both_tensors(observer: OperatorObserver) -> None:
    target, source = torch.zeros(5, 7), torch.ones(5, 7)
    (copy,) = observed(observer, lambda: target.copy_(source))
    assert copy.launch.name == "aten.copy_.default"
    assert told(copy) == [seen("self", "write", target), seen("src", "read", source)]
    assert (copy.complete, copy.stream) == (True, None)
    assert {pointer.view.device for pointer in copy.launch.pointers} == {"cpu"}


def test_in_place_arithmetic_reads_what_it_writes(observer: OperatorObserver) -> None:
    x, y = torch.zeros(3), torch.ones(3)
    (add,) = observed(observer, lambda: x.add_(y))
    assert (add.launch.name, told(add)) == (
        "aten.add_.Tensor",
        [seen("self", "read_write", x), seen("other", "read", y)],
    )


def test_overwriting_writes_alone(observer: OperatorObserver) -> None:
    x = torch.zeros(4)
    fill, zero = observed(observer, lambda: (x.fill_(1), x.zero_()))
    assert [told(fill), told(zero)] == [[seen("self", "write", x)]] * 2
    assert fill.time <= zero.time
    assert fill.sequence < zero.sequence


def test_members_of_a_list_have_their_numbers(observer: OperatorObserver) -> None:
    x, rows, columns, values = torch.zeros(4, 4), torch.tensor([1, 2]), torch.tensor([0, 3]), torch.ones(2)
    (put,) = observed(observer, lambda: x.index_put_((rows, columns), values))
    assert told(put) == [
        seen("self", "read_write", x),
        seen("indices[0]", "read", rows),
        seen("indices[1]", "read", columns),
        seen("values", "read", values),
    ]


def test_an_index_left_out_of_a_list_keeps_its_number(observer: OperatorObserver) -> None:
    x, columns = torch.zeros(4, 4), torch.tensor([0, 3])
    (put,) = observed(observer, lambda: x.__setitem__((slice(None), columns), 1.0))
    assert seen("indices[1]", "read", columns) in told(put)


def test_an_out_argument_is_written(observer: OperatorObserver) -> None:
    x, y, out = torch.ones(3), torch.ones(3), torch.empty(3)
    (add,) = observed(observer, lambda: torch.add(x, y, out=out))
    assert told(add) == [seen("out", "write", out), seen("self", "read", x), seen("other", "read", y)]


def test_what_writes_no_argument_is_left_out(observer: OperatorObserver) -> None:
    x = torch.ones(3, 3)
    assert observed(observer, lambda: (x + x, x.neg(), x.t(), x.view(9), x[0], torch.empty(3))) == []


def test_a_fresh_tensor_is_told_where_an_operator_of_its_own_fills_it(observer: OperatorObserver) -> None:
    made: list[torch.Tensor] = []
    (fill,) = observed(observer, lambda: made.append(torch.full((5,), 2.0)))
    assert told(fill) == [seen("self", "write", made[0])]


def test_what_changes_a_tensor_object_and_no_bytes_is_left_out(observer: OperatorObserver) -> None:
    x = torch.ones(2, 3)
    assert observed(observer, lambda: (x.t_(), x.unsqueeze_(0), x.detach_(), x.requires_grad_(False))) == []


def test_a_view_with_gaps_reaches_from_its_first_to_its_last_byte(observer: OperatorObserver) -> None:
    x = torch.zeros(6, 8)
    views = [x[1:3, 2:4], x[:, 5], x.t(), x.t()[2:4], x[3], x.view(-1)[7:]]
    for view in views:
        (zero,) = observed(observer, view.zero_)
        assert told(zero) == [seen("self", "write", view)]


@pytest.mark.parametrize("count", [3, 6, 7, 40])
def test_many_tensors_take_several_rows_of_one_operator(observer: OperatorObserver, count: int) -> None:
    targets, sources = [torch.zeros(2) for _ in range(count)], [torch.ones(2) for _ in range(count)]
    (copy,) = observed(observer, lambda: torch._foreach_copy_(targets, sources))
    assert told(copy) == [
        *(seen(f"self[{at}]", "write", each) for at, each in enumerate(targets)),
        *(seen(f"src[{at}]", "read", each) for at, each in enumerate(sources)),
    ]
    assert copy.complete


def test_more_tensors_than_rows_have_room_for_are_said_to_be_missing(observer: OperatorObserver) -> None:
    targets = [torch.ones(1) for _ in range(500)]
    (zero,) = observed(observer, lambda: torch._foreach_zero_(targets))
    assert not zero.complete
    assert len(zero.launch.pointers) == 64 * 6


def test_only_operators_that_may_write_given_bytes(observer: OperatorObserver) -> None:
    x, y = torch.zeros(8), torch.zeros(8)
    many = [torch.zeros(2) for _ in range(20)]
    before = observer.latest_sequence()
    x.copy_(y)
    y.fill_(1)
    torch._foreach_zero_(many)
    after = observer.latest_sequence()
    x.fill_(2)

    def writing(*tensors: torch.Tensor) -> list[str]:
        ranges = [TensorView.of(each).hull for each in tensors]
        return names(observer.launches_between(before, after, ranges))

    assert writing(x) == ["aten.copy_.default"]
    assert writing(y) == ["aten.fill_.Scalar"]
    assert writing(x, y) == ["aten.copy_.default", "aten.fill_.Scalar"]
    (zero,) = observer.launches_between(before, after, [TensorView.of(many[19]).hull])
    assert len(zero.launch.pointers) == 20
    end = TensorView.of(x).stop
    assert observer.launches_between(before, after, [ByteRange(end, end + 1)]) == []


def test_an_operator_tells_for_those_that_it_calls(observer: OperatorObserver) -> None:
    x = torch.zeros(3)
    assert names(observed(observer, lambda: x.add_(1))) == ["aten.add_.Tensor"]
    target, source = torch.zeros(3, dtype=torch.int32), torch.ones(3)
    assert names(observed(observer, lambda: target.copy_(source))) == ["aten.copy_.default"]


def test_what_a_mode_hands_on_is_told_once(observer: OperatorObserver) -> None:
    class HandsOn(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x, y = torch.zeros(3), [torch.zeros(2) for _ in range(9)]
    with HandsOn(), HandsOn():
        found = observed(observer, lambda: (x.add_(1), x.fill_(2), x.fill_(2), torch._foreach_zero_(y)))
    assert names(found) == ["aten.add_.Tensor", "aten.fill_.Scalar", "aten.fill_.Scalar", "aten._foreach_zero_.default"]


def test_what_a_mode_of_the_program_writes_itself_is_told(observer: OperatorObserver) -> None:
    log = torch.zeros(1)

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.add_(1)
            return func(*args, **(kwargs or {}))

    x = torch.zeros(3)
    with Counts():
        found = observed(observer, lambda: x.fill_(1))
    assert any(seen("self", "read_write", log) in told(each) for each in found)


def test_a_python_operator_is_told_by_what_it_calls(observer: OperatorObserver) -> None:
    workspace = torch.zeros(4)
    with torch.library._scoped_library("observed", "FRAGMENT") as library:
        library.define("scale_(Tensor(a!) x, Tensor y) -> ()")

        def scale(x: torch.Tensor, y: torch.Tensor) -> None:
            workspace.copy_(y)
            x.mul_(workspace)

        library.impl("scale_", scale, "CPU")
        x, y = torch.ones(4), torch.ones(4)
        found = observed(observer, lambda: torch.ops.observed.scale_(x, y))
    assert names(found) == ["aten.copy_.default", "aten.mul_.Tensor"]
    assert told(found[1]) == [seen("self", "read_write", x), seen("other", "read", workspace)]


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_a_kernel_that_python_code_takes_back_is_gone(observer: OperatorObserver, key: str) -> None:
    """A cell of a notebook that runs again registers another one, maybe for another key; each runs its own."""
    name = "a_name_that_does_not_fit_into_the_string_itself_"
    for at, other in enumerate((key, "CPU", key)):
        with torch.library._scoped_library("observed", "FRAGMENT") as library:
            library.define(f"{name}(Tensor(a!) x) -> ()")
            library.impl(name, lambda x, at=at: (x.fill_(at), None)[1], other)
            x = torch.full((3,), -1.0)
            observed(observer, lambda x=x: getattr(torch.ops.observed, name)(x))
            assert x.tolist() == [at] * 3
        with pytest.raises((NotImplementedError, AttributeError, RuntimeError)):
            getattr(torch.ops.observed, name)(x)


def test_an_override_of_an_operator_of_torch_is_taken_back(observer: OperatorObserver) -> None:
    x = torch.zeros(3)
    for _ in range(2):
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("nan_to_num.out", lambda x, nan=None, posinf=None, neginf=None, out=None: out, "CPU")
            assert torch.nan_to_num(torch.ones(3), out=x).tolist() == [0] * 3
        assert torch.nan_to_num(torch.ones(3), out=torch.zeros(3)).tolist() == [1] * 3


def test_running_statistics_are_written_in_training_alone(observer: OperatorObserver) -> None:
    x, mean, variance = torch.randn(4, 3), torch.zeros(3), torch.ones(3)

    def normalise(training: bool) -> list[ObservedOperator]:
        operator = torch.ops.aten.native_batch_norm.default
        found = observed(observer, lambda: operator(x, None, None, mean, variance, training, 0.1, 1e-5))
        return [each for each in found if each.launch.name == "aten.native_batch_norm.default"]

    (trained,) = normalise(True)
    assert {seen("running_mean", "read_write", mean), seen("running_var", "read_write", variance)} <= set(told(trained))
    assert normalise(False) == []


def test_wrappers_are_told_by_the_tensors_inside(observer: OperatorObserver) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = torch.zeros(3), torch.zeros(3)
    wrapper = TwoTensor(a, b)
    found = observed(observer, lambda: wrapper.fill_(1))
    assert [told(each)[0] for each in found] == [seen("self", "write", a), seen("self", "write", b)]


def test_a_wrapper_that_answers_for_its_sizes_is_not_asked(observer: OperatorObserver) -> None:
    """It would answer in Python, and noting has no right to run any. What it answers itself reaches no kernel."""
    asked: list[str] = []

    class Sized(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Sized:
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), dtype=inner.dtype, dispatch_sizes_strides_policy="sizes", dispatch_device=True
            )

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(str(func))
            return args[0]

    wrapper = Sized(torch.zeros(3))
    asked.clear()
    target = torch.zeros(3)
    assert not observed(observer, lambda: torch.ops.aten.fill_.Scalar(wrapper, 1))
    assert not observed(observer, lambda: torch.ops.aten.add.out(wrapper, wrapper, out=target))
    assert asked == ["aten.fill_.Scalar", "aten.add.out"]


def test_fake_meta_sparse_nested_and_functional_tensors_have_no_memory(observer: OperatorObserver) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
        assert observed(observer, lambda: fake.fill_(1)) == []
    meta = torch.empty(3, device="meta")
    assert observed(observer, lambda: meta.fill_(1)) == []
    functional = torch._to_functional_tensor(torch.zeros(3))
    torch._enable_functionalization(reapply_views=True)
    try:
        observed(observer, lambda: functional.add_(1))
    finally:
        torch._disable_functionalization()
    sparse = torch.eye(3).to_sparse()
    observed(observer, lambda: sparse.mul_(2))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    observed(observer, lambda: nested.mul_(2))
    torch.vmap(lambda x: x.add_(1))(torch.zeros(2, 3))


def test_a_lazy_copy_stays_one(observer: OperatorObserver) -> None:
    x = torch.zeros(4)
    copy = torch._lazy_clone(x)
    target = torch.zeros(4)
    (found,) = observed(observer, lambda: target.copy_(copy))
    assert torch._C._is_cow_tensor(copy)  # type: ignore[attr-defined]
    assert not found.complete
    assert told(found) == [seen("self", "write", target)]


def test_every_dtype_has_its_name(observer: OperatorObserver) -> None:
    dtypes = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    for dtype in dtypes:
        try:
            x = torch.empty(2, dtype=dtype)
        except (RuntimeError, TypeError):
            continue
        found = observed(observer, lambda x=x: torch.ops.aten.copy_.default(x, x))
        view = found[0].launch.pointers[0].view
        assert (view.dtype, view.itemsize) == (str(dtype).removeprefix("torch."), dtype.itemsize)
        assert view.hull == TensorView.of(x).hull


def test_the_gradient_of_backward_in_its_own_order(observer: OperatorObserver) -> None:
    x = torch.ones(3, requires_grad=True)
    grad = x.grad = torch.zeros(3)
    found = observed(observer, lambda: (x * 2).sum().backward())
    assert any(seen("self", "read_write", grad) in told(each) for each in found)
    assert all(each.launch.pointers[0].access is not Access.READ for each in found)


@torch.jit.script
def scripted(target: torch.Tensor, source: torch.Tensor, times: int) -> torch.Tensor:
    total = torch.zeros(1)
    for _ in range(times):
        total.add_(torch.ones(1).mul_(2), alpha=3).sub_(target.copy_(source)[0])
    return total


def test_torchscript_calls_operators_with_its_whole_stack(observer: OperatorObserver) -> None:
    target, source = torch.zeros(4), torch.ones(4)
    for _ in range(4):  # as it is, then as the profiling executor has made it anew
        found = observed(observer, lambda: scripted(target, source, 3))
        copies = [told(each) for each in found if each.launch.name == "aten.copy_.default"]
        assert copies == [[seen("self", "write", target), seen("src", "read", source)]] * 3


def test_operators_are_told_after_one_that_raised(observer: OperatorObserver) -> None:
    x = torch.zeros(3)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="size"):
            x.copy_(torch.ones(7))
    (fill,) = observed(observer, lambda: x.fill_(1))
    assert fill.launch.name == "aten.fill_.Scalar"

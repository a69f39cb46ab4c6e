"""TensorFlow's errors are no RuntimeErrors; what they say of ours decides. Real ones: tensorflow/test_keras.py."""

import pytest

from hdp.contract.errors import is_collateral
from hdp.runtime.launch.failure import one_line


def of_tensorflow(text: str) -> Exception:
    """An error of a class that TensorFlow has made, and the user has derived from."""
    made = type("OpError", (Exception,), {"__module__": "tensorflow.python.framework.errors_impl"})
    return type("MyError", (made,), {"__module__": "train"})(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{node HdpAllreduce}} PeerLost: rank 1 on algo-1 is gone [Op:__inference_step_3]", True),
        ("CollectiveTimeout: allreduce 'gradients 0#7': rank 2 is missing", True),
        ("CollectiveMismatch: rank 0 called allreduce, rank 1 broadcast", False),
        ("Matrix size-incompatible: In[0]: [4,5], In[1]: [4,3]", False),
    ],
)
def test_what_is_collateral(text: str, expected: bool) -> None:
    """A lost peer and a timeout are, a mismatch and TensorFlow's own errors aren't."""
    assert is_collateral(of_tensorflow(text)) is expected


def test_a_text_alone_is_no_proof() -> None:
    """Other libraries' exceptions are not searched."""
    assert not is_collateral(ValueError("PeerLost: in a text of the user's"))


def test_a_reason_leaves_out_where_an_operation_was_made() -> None:
    """The stack of a graph's operation may be longer than a reason."""
    stack = "".join(f'  File "train.py", line {line}, in step\n\n' for line in range(100))
    text = f"Graph execution error:\n\nDetected at node sgd/HdpAllreduce defined at (most recent call last):\n{stack}"
    reason = one_line(of_tensorflow(f"{text}CollectiveMismatch: rank 0 called\n\t [[{{node sgd}}]] [Op:step]"))
    assert reason == "MyError: CollectiveMismatch: rank 0 called [[{node sgd}]] [Op:step]"

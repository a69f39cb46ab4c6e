"""The notebooks: what git has of them, and that each runs from top to bottom and shows what it's there for."""

import ast
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from notebooks_support import DOCKER, NAMES, ROOT


def notebook(path: Path) -> dict:
    return json.loads(path.read_text())


def cells(name: str) -> list[dict]:
    return notebook(ROOT / "notebooks" / f"{name}.ipynb")["cells"]


def outputs(path: Path) -> list[dict]:
    return [output for cell in notebook(path)["cells"] for output in cell.get("outputs", ())]


def shown(path: Path, kind: str) -> list[str]:
    """Everything of the MIME type `kind` that the notebook shows."""
    return ["".join(output["data"][kind]) for output in outputs(path) if kind in output.get("data", {})]


def printed(path: Path) -> str:
    return "".join("".join(output["text"]) for output in outputs(path) if output.get("name") == "stdout")


def test_names_are_numbered_from_1():
    assert [f"{number:02}_{name[3:]}" for number, name in enumerate(NAMES, 1)] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_stripped(name):
    assert not [cell["id"] for cell in cells(name) if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_stable_and_in_order(name):
    """c00, c01, ...: an editor's random ones would change in git with each save."""
    assert [cell["id"] for cell in cells(name)] == [f"c{number:02}" for number in range(len(cells(name)))]


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_as_the_stripper_writes_it(name):
    """One space of indentation, text as it is, nothing of the machine in the metadata."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    content = notebook(path)
    assert path.read_text() == json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    assert set(content["metadata"]) <= {"kernelspec", "language_info"}


@pytest.mark.parametrize("name", NAMES)
def test_it_begins_with_its_title(name):
    assert cells(name)[0]["cell_type"] == "markdown"
    assert cells(name)[0]["source"][0].startswith("# ")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_from_top_to_bottom(name, executed):
    executed(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_first_job_shows_its_progress_in_one_display(executed):
    """An epoch of 22 steps. Expected: one bar, at its end, and no line a second."""
    path = executed("01_first_job")
    bars = [text for text in shown(path, "text/html") if "<progress" in text]
    assert len(bars) == 1
    assert re.search(r'<progress [^>]*value="22" max="22"', bars[0])
    assert re.search(r"Completed &middot; step 21 of 22 &middot; loss [\d.]+ &middot; [\d,]+ samples/s", bars[0])
    assert "| step" not in printed(path)
    assert "test accuracy" in printed(path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_first_job_shows_itself_with_its_hosts_and_a_line_of_its_loss(executed):
    card = next(text for text in shown(executed("01_first_job"), "text/html") if "TrainingJob.attach" in text)
    assert "2 x local, 4 ranks: algo-1: 0, 1; algo-2: 2, 3" in card
    assert re.search(r'<polyline points="([\d.]+,[\d.]+ ?){22}"', card)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_first_job_shows_the_report_with_its_curves(executed):
    page = shown(executed("01_first_job"), "text/html")[-1]
    assert {"Metrics", "Ranks"} <= set(re.findall(r"<h2>(.*?)</h2>", page))
    assert page.count("<svg") >= 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_comparison_shows_its_table_and_its_plot(executed):
    path = executed("02_swap_the_distribution")
    table = next(text for text in shown(path, "text/html") if "quartiles" in text)
    assert {"hdp", "gloo"} <= {html.unescape(t) for t in re.findall(r"<th[^>]*>(.*?)</th>", table)}
    assert shown(path, "image/png")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_streaming_shows_the_statistics_of_a_channel_and_the_time_to_the_first_step(executed):
    path = executed("03_streaming_data")
    if "not streaming from S3" in printed(path):
        pytest.skip(f"NO STREAM: {printed(path)}")
    assert re.search(r"^algo-1: channel training: .* GETs, .* reads served at once", printed(path), re.MULTILINE)
    times = ast.literal_eval(shown(path, "text/plain")[-1])
    assert set(times) == {"FastFile", "File"}
    assert min(times.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_keras_shows_the_losses_of_both_jobs(executed):
    assert shown(executed("04_tensorflow_keras"), "image/png")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_efficientnet_shows_images_a_second(executed):
    path = executed("05_efficientnet_pytorch")
    assert re.search(r"hosts\s+2\s+(\d+\.\d\s*){3}", shown(path, "text/plain")[0])
    assert shown(path, "image/png")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_sagemaker_plans_32_ranks_prices_them_and_trains_against_the_stand_in(executed):
    path = executed("06_on_sagemaker")
    assert "launcher hdp, 4 hosts, 32 ranks" in shown(path, "text/html")[0]
    request = json.loads(re.search(r"^{\n.*?^}\n", printed(path), re.MULTILINE | re.DOTALL)[0])
    assert request["ResourceConfig"]["InstanceType"] == "ml.p4d.24xlarge"
    assert "100.00 dollars an hour" in "".join(shown(path, "text/plain"))
    assert re.search(r"\('Completed',\s+'s3://.*/output/model\.tar\.gz'\)", shown(path, "text/plain")[-1])


@pytest.fixture
def containers(executed):
    """The notebook about images, executed; a machine without Docker has only why it can't be."""
    path = executed(DOCKER)
    lacks = [output["evalue"] for output in outputs(path) if output["output_type"] == "error"]
    if lacks:
        pytest.skip(f"NO DOCKER, so no image was built in the notebook: {lacks[0]}")
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_building_containers_shows_the_steps_and_what_is_in_the_image(containers):
    assert "Step 1/" in printed(containers)
    assert re.search(r"hdp-notebook:latest +torch +[0-9a-f]{12} .*hdp-train \d", printed(containers))
    listed = next(text for text in shown(containers, "text/html") if "<th>package</th>" in text)
    assert "boto3" in listed
    config = next(text for text in shown(containers, "text/plain") if "'Healthcheck'" in text)
    assert {"User": "1000:1000", "Cmd": ["train"]}.items() <= ast.literal_eval(config).items()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_building_containers_trains_in_an_image_of_ones_own_and_leaves_nothing(containers):
    """The image made FROM ours has OMP_NUM_THREADS=1, and runs the job's two hosts."""
    assert re.search(r"^\d+\.\d+\.\S+ 1$", printed(containers), re.MULTILINE)
    card = next(text for text in shown(containers, "text/html") if "TrainingJob.attach" in text)
    assert "2 x docker, 2 ranks: algo-1: 0; algo-2: 1" in card
    assert ast.literal_eval(shown(containers, "text/plain")[-1]) == {"containers": [], "networks": []}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_docker_the_notebook_stops_at_once_and_says_what_to_do(tmp_path):
    """DOCKER_HOST names a socket that nobody serves. Expected: one output, the engine's own message; exit code 0."""
    pytest.importorskip("nbclient", reason="NO nbclient, so no notebook is executed: pip install -e '.[docs]'")
    command = [sys.executable, "tools/notebooks.py", "--to", str(tmp_path), DOCKER]
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{DOCKER}: NOT RUN PAST ITS BEGIN, since EngineError: no Docker daemon answers at unix://" in done.stdout
    [said] = outputs(tmp_path / f"{DOCKER}.ipynb")
    assert "systemctl start docker" in said["evalue"]


#: Distributions whose modules have another name.
NAMED = {"sklearn": "scikit-learn"}


def _imported(source: str) -> set[str]:
    """Modules, by their first name; not those that `try` imports, since it goes on without them."""
    tree = ast.parse(source)
    tried = {inner for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in ast.walk(node)}
    nodes = [node for node in ast.walk(tree) if node not in tried]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names}


def _needed(name: str) -> set[str]:
    """Modules of others that the notebook imports, by itself or by what is in the example's folder and beside it."""
    source = "\n".join("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code")
    folders = [ROOT / "examples", *(ROOT / "examples" / found for found in re.findall(r"examples/(\w+)", source))]
    todo, found = _imported(source), set()
    while todo:
        module = todo.pop()
        own = [folder / f"{module}.py" for folder in folders if (folder / f"{module}.py").exists()]
        todo |= {more for path in own for more in _imported(path.read_text())} - found
        found.add(module)
        if own:
            found.discard(module)
    return found - set(sys.stdlib_module_names) - {"hdp", "__future__"}


@pytest.mark.parametrize("name", NAMES)
def test_the_extra_notebook_has_what_it_imports(name):
    """Besides what the client itself needs; TensorFlow is an extra of its own."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 can't read pyproject.toml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["notebook"]]
    installed = {re.match(r"[\w-]+", text)[0] for text in listed} | {"torch", "tensorflow"}
    assert {NAMED.get(module, module) for module in _needed(name)} - installed == set()

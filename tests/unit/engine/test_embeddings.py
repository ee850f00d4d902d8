"""`LLM.embed`, `AsyncEngine.embed`, and what becomes of a prompt whose vector is wanted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.input_processor import InputProcessor
from chairlift.engine.llm import LLM
from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import ContextLengthError, RequestError
from chairlift.models.decoder import Decoder
from chairlift.outputs import EmbeddingRequestOutput
from chairlift.pooling_params import PoolingParams
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs

Load = Callable[..., LoadedModel]
Make = Callable[..., InputProcessor]
MEAN = PoolingParams(pooling_type="mean")
OPTIONS: dict[str, Any] = {"kv_cache_memory": "4MiB", "swap_space": 0.01, "threads": 2, "seed": 0}


@pytest.fixture(scope="module")
def shared_llm(tiny_folder: Callable[[str], Path]) -> LLM:
    return LLM(str(tiny_folder("llama3")), **OPTIONS)


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    yield shared_llm
    engine = shared_llm.engine
    assert not engine.has_unfinished_requests and shared_llm._newest == {}
    assert engine.scheduler.kv.num_free_blocks == engine.scheduler.kv.pool.num_usable_blocks


def test_vectors_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    outputs = llm.embed(["abc", "defg", "h"])
    assert [output.prompt for output in outputs] == ["abc", "defg", "h"]
    for output in outputs:
        assert isinstance(output, EmbeddingRequestOutput)
        assert output.finished and output.error is None
        assert len(output.outputs.embedding) == output.outputs.hidden_size == 64
        assert np.linalg.norm(output.outputs.embedding) == pytest.approx(1.0, abs=1e-6)
        in_place = np.frombuffer(output.outputs.vector, np.float32)
        np.testing.assert_array_equal(in_place, np.float32(output.outputs.embedding))
        assert output.metrics.finished_time is not None
        assert output.metrics.prefill_s is not None and output.metrics.queue_s is not None
    assert outputs[0].outputs.embedding != outputs[1].outputs.embedding
    assert llm.embed([]) == []


def test_prompt_forms_give_the_same_vector(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("abc")
    (expected,) = llm.embed("abc")
    for prompt in (ids, tuple(ids), {"prompt": "abc"}, {"prompt_token_ids": ids}):
        (output,) = llm.embed(prompt)
        assert output.outputs.vector == expected.outputs.vector
    both = llm.embed([ids, ids])
    assert [output.outputs.vector for output in both] == [expected.outputs.vector] * 2


def test_options_for_all_or_for_each(llm: LLM) -> None:
    plain = PoolingParams(pooling_type="mean", normalize=False)
    last, mean, raw = llm.embed(["abc"] * 3, [PoolingParams(), MEAN, plain])
    assert llm.embed("abc", MEAN)[0].outputs.vector == mean.outputs.vector
    assert last.outputs.vector != mean.outputs.vector
    scaled = np.array(raw.outputs.embedding)
    np.testing.assert_allclose(
        scaled / np.linalg.norm(scaled), mean.outputs.embedding, rtol=1e-6, atol=1e-7
    )
    assert abs(np.linalg.norm(scaled) - 1) > 1e-3


@pytest.mark.parametrize(
    ("prompts", "params", "field"),
    [
        ("", None, "prompt"),
        (["abc", ""], None, "prompt"),
        ([[3, 999]], None, "prompt_token_ids"),
        (5, None, "prompts"),
        ("abc", {"pooling_type": "mean"}, "pooling_params"),
        ("abc", [MEAN, MEAN], "pooling_params"),
        ("abc", [SamplingParams()], "pooling_params"),
        ("abc", SamplingParams(), "pooling_params"),
    ],
)
def test_bad_input_is_named_before_anything_runs(
    llm: LLM, prompts: Any, params: Any, field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.embed(prompts, params)
    assert caught.value.field == field


def test_many_prompts_more_than_fit_the_cache_at_once(llm: LLM) -> None:
    prompts = [[i % 250 + 2, 5, *range(2, 2 + i % 60)] for i in range(300)]
    outputs = llm.embed(prompts, MEAN, use_tqdm=False)
    chosen = [0, 17, 299]
    for index in chosen:
        (alone,) = llm.embed([prompts[index]], MEAN)
        assert outputs[index].outputs.vector == alone.outputs.vector


def test_streams_and_vectors_share_the_steps(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    (expected,) = llm.generate("abc", params)
    stream = llm.stream("abc", params)
    next(stream)
    (output,) = llm.embed("defg")
    *_, last = stream
    assert last.outputs[0].token_ids == expected.outputs[0].token_ids
    assert output.outputs.vector == llm.embed("defg")[0].outputs.vector


def test_the_prompt_may_be_as_long_as_the_context(make_input_processor: Make) -> None:
    processor = make_input_processor(max_model_len=20)
    request = processor.process_embedding([3] * 20)
    (child,) = request.children
    assert child.max_tokens == 0 and child.num_prompt_tokens == 20 == child.num_max_tokens
    with pytest.raises(ContextLengthError, match="may have 20") as caught:
        processor.process_embedding([3] * 21)
    assert caught.value.field == "prompt"
    with pytest.raises(ContextLengthError, match="may have 19"):
        processor.process([3] * 20)


def test_the_models_own_way_holds_where_none_is_asked_for(make_input_processor: Make) -> None:
    def kind(processor: InputProcessor, params: PoolingParams | None) -> tuple[object, bool]:
        (child,) = processor.process_embedding([3], params).children
        assert child.pooling_params is not None
        return child.pooling_params.pooling_type, child.use_prefix_cache

    plain, own = make_input_processor(), make_input_processor(pooling_type="mean")
    assert kind(plain, None) == ("last", True)
    assert kind(own, None) == kind(own, PoolingParams(normalize=False)) == ("mean", False)
    assert kind(own, PoolingParams(pooling_type="last")) == ("last", True)
    assert kind(plain, MEAN) == ("mean", False)


@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", True), ("priority", "1"), ("request_id", 5), ("cache_salt", 5), ("tenant", 5)],
)
def test_labels_are_checked(make_input_processor: Make, field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        make_input_processor().process_embedding([3], **{field: value})
    assert caught.value.field == field


def test_an_option_of_the_engine_decides_for_all(tiny_folder: Callable[[str], Path]) -> None:
    llm = LLM(str(tiny_folder("llama3")), pooling_type="mean", **OPTIONS)
    assert llm.embed("abc")[0].outputs.vector == llm.embed("abc", MEAN)[0].outputs.vector
    last = PoolingParams(pooling_type="last")
    assert llm.embed("abc")[0].outputs.vector != llm.embed("abc", last)[0].outputs.vector


def test_a_folder_of_sentence_transformers_is_pooled_as_it_says(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    for file in tiny_folder("llama3").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "1_Pooling").mkdir()
    told = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(told))
    llm = LLM(str(tmp_path), **OPTIONS)
    assert llm.engine.model.pooling_type == "mean"


def test_a_faulty_vector_ends_its_request_only(
    load_tiny: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the model gives for one of three prompts in a step is no number."""
    prompts = [[3, 4, 5], [6, 7], [8, 9, 10, 11]]
    expected = run_jobs(make_engine(load_tiny()), [Job(prompt=p, pooling=MEAN) for p in prompts])
    final_states = Decoder.final_states

    def spoil(self: Decoder, x: Any) -> Any:
        states = final_states(self, x)
        return states * np.float32("nan") if len(x) == 2 else states

    monkeypatch.setattr(Decoder, "final_states", spoil)
    engine = make_engine(load_tiny())
    outputs = run_jobs(engine, [Job(prompt=p, pooling=MEAN) for p in prompts])
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "error", "stop"]
    assert outputs[0].embedding == expected[0].embedding
    assert outputs[2].embedding == expected[2].embedding
    bad = EmbeddingRequestOutput.of(outputs[1])
    assert bad.outputs.embedding == [] and bad.error is not None and "not numbers" in bad.error
    assert run_jobs(engine, [Job(prompt=[1, 2, 3], pooling=MEAN)])[0].embedding is not None


async def test_the_async_engine_embeds_beside_streams(load_tiny: Load) -> None:
    engine = AsyncEngine(make_engine(load_tiny()))
    try:
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        stream = engine.generate([5, 6, 7], params)
        first = await anext(stream)
        vectors = await asyncio.gather(*(engine.embed([3, 4, i], MEAN) for i in range(20)))
        *_, last = [first] + [output async for output in stream]
        assert len(last.outputs[0].token_ids) == 20
        alone = await engine.embed([3, 4, 7], MEAN)
        assert vectors[7].outputs.vector == alone.outputs.vector
        assert alone.num_cached_tokens == 0 and alone.error is None
        with pytest.raises(RequestError) as caught:
            await engine.embed("")
        assert caught.value.field == "prompt"
    finally:
        engine.shutdown()

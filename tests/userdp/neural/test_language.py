"""Language models: a user's row is that of plain transformers and peft on that user alone, and only adapters move."""

import json
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import SIZES, STEPS, TEXTS, TOKENS, WINDOWS, build, lora, make_base, people

from userdp.arrays.sparse_rows import clip_rows
from userdp.data.shape import Sequence, Shape
from userdp.errors import BadInput
from userdp.neural import language
from userdp.neural.kernels.by_user import ByUser
from userdp.neural.tuner import Tuner
from userdp.nodes.local_training import LocalTraining

peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folders = {kind: make_base(tmp_path_factory.mktemp(kind), kind) for kind in ("llama", "gpt2")}
    return folders.__getitem__


def plain(folder, problem, x, kind=None, shape=WINDOWS):
    """The library's own model at x: whole, or with peft's adapter."""
    auto = transformers.AutoModelForCausalLM if shape is WINDOWS else transformers.AutoModelForSequenceClassification
    classes = {} if shape is WINDOWS else {"num_labels": 3}
    model = auto.from_pretrained(folder, dtype=torch.float64, **classes)
    model.get_input_embeddings().padding_idx = None  # the library never trains the token that pads
    if kind is not None:
        made = lora(kind)
        task = "CAUSAL_LM" if shape is WINDOWS else "SEQ_CLS"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            about = {"r": 2, "lora_alpha": 16, "target_modules": made["targets"], "fan_in_fan_out": kind == "gpt2"}
            model = peft.get_peft_model(model, peft.LoraConfig(**about, task_type=task)).double()
    model.eval()
    trained = [one for one in model.parameters() if one.requires_grad]
    assert sum(one.numel() for one in trained) == problem.dimension
    torch.nn.utils.vector_to_parameters(torch.as_tensor(x), trained)
    return model, trained


def gradient(model, trained, block):
    """The gradient of a user's mean loss, window after window, as the library's users would compute it."""
    total = 0.0
    for row, codes in enumerate(torch.as_tensor(block.features).long()):
        if block.targets is None:
            own = codes[codes >= 0]
            seen = torch.cat([torch.tensor([1]), own[:-1]])[None]
            logits, wanted = model(input_ids=seen).logits[0], own
        else:
            own = codes[codes > 0] - 1
            logits, wanted = model(input_ids=own[None]).logits, torch.as_tensor(block.targets[row : row + 1]).long()
        total = total + torch.nn.functional.cross_entropy(logits, wanted)
    found = torch.autograd.grad(total / block.samples, trained)
    return torch.nn.utils.parameters_to_vector(found).numpy()


def each_alone(folder, problem, x, block, *more):
    given = plain(folder, problem, x, *more)
    return np.stack([gradient(*given, block.part(user, user + 1)) for user in range(block.users)])


@pytest.mark.parametrize("execution", ["loop", "grouped"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_users_row_is_that_of_peft_on_that_user_alone(base, kind, execution):
    problem, block = build(base(kind), adapter=lora(kind), execution=execution), people()
    x = problem.initial() + 0.05
    expected = each_alone(base(kind), problem, x, block, kind)
    np.testing.assert_allclose(problem.user_gradients(x, block), expected, rtol=1e-8, atol=1e-12)
    step = LocalTraining(step_size=0.1, steps=1)
    np.testing.assert_allclose(problem.local_updates(x, block, step), -0.1 * expected, rtol=1e-8, atol=1e-12)


def test_a_whole_models_row_is_that_of_the_library(base):
    problem, block = build(base("llama"), execution="loop"), people()
    x = problem.initial()
    np.testing.assert_allclose(
        problem.user_gradients(x, block), each_alone(base("llama"), problem, x, block), rtol=1e-7, atol=1e-11
    )
    assert problem.dimension == sum(one.numel() for one in plain(base("llama"), problem, x)[1])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_text_has_a_class_and_padding_does_not_matter(base, kind):
    problem, block = build(base(kind), TEXTS, adapter=lora(kind)), people(shape=TEXTS)
    x = problem.initial() + 0.05
    expected = each_alone(base(kind), problem, x, block, kind, TEXTS)
    np.testing.assert_allclose(problem.user_gradients(x, block), expected, rtol=1e-7, atol=1e-11)
    assert (block.features[-1] == 0).sum() == STEPS // 2


def test_a_user_of_several_pieces_has_the_row_of_one_piece(base, monkeypatch):
    problem, block = build(base("llama"), adapter=lora()), people()
    x = problem.initial() + 0.05
    whole = problem.user_gradients(x, block)
    monkeypatch.setattr(Tuner, "most_samples", 2)
    np.testing.assert_allclose(problem.user_gradients(x, block), whole, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("precision", ["double", "bf16"])
@settings(max_examples=8, deadline=None)
@given(st.integers(0, len(SIZES) - 1), st.integers(1, 2**31))
def test_replacing_a_user_moves_its_own_row_alone_and_a_sum_by_two_clips(base, precision, user, seed):
    problem = build_once(base("llama"), precision)
    x, clip = problem.initial() + 0.05, 0.01
    one = people()
    features = one.features.copy()
    mine = slice(one.offsets[user], one.offsets[user + 1])
    features[mine] = np.random.default_rng(seed).integers(0, TOKENS, features[mine].shape)
    rows, others = (problem.user_gradients(x, block) for block in (one, replace(one, features=features)))
    np.testing.assert_array_equal(np.delete(rows, user, 0), np.delete(others, user, 0))
    assert not np.array_equal(rows[user], others[user])
    clipped = [clip_rows(each, clip) for each in (rows, others)]
    assert np.linalg.norm(rows, axis=1).min() > clip
    assert all(np.linalg.norm(each, axis=1).max() <= clip * (1 + 1e-9) for each in clipped)
    assert np.linalg.norm(clipped[0].sum(0) - clipped[1].sum(0)) <= 2 * clip * (1 + 1e-9)


_BUILT = {}


def build_once(folder, precision):
    if precision not in _BUILT:
        _BUILT[precision] = build(folder, adapter=lora(), precision=precision, execution="grouped")
    return _BUILT[precision]


def test_users_of_a_call_have_models_of_their_own_and_one_without_numbers_spoils_its_row_alone(base):
    problem, block = build_once(base("llama"), "double"), people()
    models = problem.initial() + 0.05 * np.random.default_rng(0).normal(size=(block.users, problem.dimension))
    users = [(x, block.part(user, user + 1)) for user, x in enumerate(models)]
    wanted = np.concatenate([problem.user_gradients(*user) for user in users])
    np.testing.assert_allclose(problem.user_gradients_at(models, block), wanted, rtol=1e-6, atol=1e-9)
    models[3] = np.nan
    found = problem.user_gradients_at(models, block)
    others = np.arange(block.users) != 3  # it shares its call with user 4
    np.testing.assert_allclose(found[others], wanted[others], rtol=1e-6, atol=1e-9)
    assert not np.isfinite(found[3]).any()


def test_the_base_is_read_once_and_never_travels(base, monkeypatch):
    problem = build(base("llama"), adapter=lora(), precision="single")
    module = problem.engine.model.original.module
    problem.user_gradients(problem.initial(), people())
    again = build(base("llama"), adapter=lora(), precision="single", seed=1)
    twin = pickle.loads(pickle.dumps(problem))
    copies = [each.now.module for each in vars(problem.engine.model._place).values() if hasattr(each, "now")]
    places = [one.engine.model.original.module for one in (again, twin)] + copies
    assert len(places) == 5
    frozen = {name: one.data_ptr() for name, one in module.named_parameters() if name not in module.trained}
    for one in places:
        assert {name: part.data_ptr() for name, part in one.named_parameters() if name in frozen} == frozen
    block, x = people(), problem.initial() + 0.05
    np.testing.assert_array_equal(twin.user_gradients(x, block), problem.user_gradients(x, block))
    assert not np.array_equal(again.initial(), problem.initial())
    weights = sum(one.nbytes for one in module.parameters())
    head, _ = language._loaded(module.language)
    monkeypatch.setattr(language, "_loaded", lambda _: (head, frozenset()))  # a pickle names the base
    state = pickle.dumps(module)
    assert len(state) < 8 * 4 * problem.dimension < weights


def test_training_leaves_the_base_as_it_is(base):
    problem = build(base("llama"), adapter=lora(), precision="single")
    module = problem.engine.model.original.module
    before = {name: one.clone() for name, one in module.named_parameters()}
    x = problem.initial()
    moved = problem.local_updates(x, people(), LocalTraining(step_size=1.0, steps=3))
    assert (np.abs(moved).max(0) > 0).all()
    trained = problem.module_at(x + moved[0])
    for name, one in module.named_parameters():
        assert torch.equal(one, before[name])
        assert torch.equal(trained.get_parameter(name), one) != (name in module.trained)
    assert all(".lora_" in name for name in module.trained)
    assert problem.dimension == 2 * 2 * 2 * (16 + 16)  # layers, targets, rank, both factors


def test_at_first_the_second_factors_move_alone(base):
    problem = build(base("llama"), adapter=lora())
    parameters = problem.engine.model.original.parameters
    rows = problem.user_gradients(problem.initial(), people())
    for name, each in parameters.named(torch.as_tensor(rows)).items():
        assert each.any() == ("lora_B" in name), name


def test_bfloat16_keeps_adapters_and_their_sums_in_float32(base):
    exact, rough = (build(base("llama"), adapter=lora(), precision=one) for one in ("double", "bf16"))
    kinds = {name: one.dtype for name, one in rough.engine.model.original.module.named_parameters()}
    trained = rough.engine.model.original.module.trained
    assert {kind for name, kind in kinds.items() if name in trained} == {torch.float32}
    assert {kind for name, kind in kinds.items() if name not in trained} == {torch.bfloat16}
    block, x = people(), exact.initial() + 0.05
    wanted, found = exact.user_gradients(x, block), rough.user_gradients(x, block)
    assert 0 < np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()
    whole = build(base("llama"), precision="bf16", execution="loop")
    wanted = build(base("llama"), execution="loop").user_gradients(whole.initial(), block)
    found = whole.user_gradients(whole.initial(), block)
    assert 0 < np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()


def test_weights_are_drawn_from_the_seed_where_none_are_read(base):
    drawn = [build(base("llama"), pretrained=False, seed=seed).initial() for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert not np.array_equal(drawn[0], build(base("llama")).initial())
    heads = [build(base("llama"), TEXTS, adapter=lora(), seed=seed).initial() for seed in (0, 0, 1)]
    np.testing.assert_array_equal(heads[0], heads[1])
    assert not np.array_equal(heads[0][-48:], heads[2][-48:])  # the head of three classes, too


def test_a_plan_tells_what_computing_takes(base):
    sizes = build(base("llama"), adapter=lora(), precision="bf16", memory=1).sizes()
    model = transformers.AutoModelForCausalLM.from_pretrained(base("llama"))
    own = sum(one.numel() for one in model.parameters())
    assert (sizes["trained_parameters"], sizes["module_parameters"]) == (256, own + 256)
    assert sizes["weights_mib"] == (2 * own + 4 * 256) / 2**20
    assert sizes["message_mib"] == 8 * 256 / 2**20
    assert 0 < sizes["samples_at_once"] * sizes["sample_mib"] <= 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"adapter": lora(targets=["q_proj", "w_proj"])},
            r"no layer 'w_proj'; there are down_proj, gate_proj, k_proj,",
        ),
        ({"adapter": lora(), "pretrained": False}, r"adapter with problem\.pretrained = false"),
        ({"loss": "mse"}, r"problem\.loss = 'cross_entropy'"),
        ({"module": "a.py:make"}, "leave one out"),
        ({"model": "somewhere"}, "write 'hf:FOLDER'"),
        ({"model": None, "adapter": lora()}, r"problem\.adapter is for language models"),
        ({"model": None, "precision": "bf16"}, r"precision = 'bf16' is for language models"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(base, change, told):
    with pytest.raises(BadInput, match=told):
        build(base("llama"), **change)


def test_more_tokens_than_the_model_has_or_reads_are_refused(base):
    with pytest.raises(BadInput, match="has 23 tokens, and samples have 24"):
        build(base("llama"), Shape(4, has_target=False, sequence=Sequence(4, (24,))))
    with pytest.raises(BadInput, match="reads 32 tokens at once, and samples have 33"):
        build(base("gpt2"), Shape(33, has_target=False, sequence=Sequence(33, (23,))))


def test_folders_and_names_that_cannot_be_read_are_refused(base, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"the folder has to hold config\.json"):
        build(tmp_path)
    with pytest.raises(BadInput, match="there is no such folder; where there is no network"):
        build(tmp_path / "nothing")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match="hf download NAME --local-dir FOLDER"):
        build("nobody/nothing")
    for file in base("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    torch.save({"model": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(BadInput, match=r"model\.safetensors"):
        build(tmp_path)


def test_code_in_a_folder_is_not_run(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    with pytest.raises(BadInput, match="cannot be read"):
        build(tmp_path)
    assert not ran.exists()


def test_weights_of_another_model_are_refused(base, tmp_path):
    from safetensors.torch import load_file, save_file

    for file in base("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match=r"lack weights of LlamaForCausalLM, such as model\.layers\.1\.mlp\.up_proj"):
        build(tmp_path)


def test_an_adapter_that_nothing_moves_is_refused(base, monkeypatch):
    made = language.LanguageModel._with_adapter

    def disconnected(self, base):
        model = made(self, base)
        for part in model.modules():
            if isinstance(part, peft.tuners.lora.LoraLayer):
                part.scaling = dict.fromkeys(part.scaling, 0.0)
        return model

    monkeypatch.setattr(language.LanguageModel, "_with_adapter", disconnected)
    with pytest.raises(BadInput, match="8 of 8 tensors of the adapter no gradient"):
        build(base("llama"), adapter=lora())


def test_a_model_that_sees_later_tokens_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=TOKENS, max_position_embeddings=32, **sizes)
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="looks ahead"):
        build(tmp_path, adapter={"kind": "lora", "rank": 2, "targets": ["query"]})


def test_layers_of_users_are_those_of_torch_one_by_one():
    layer = ByUser(5, 3).double()
    own = torch.nn.Linear(5, 3).double()
    inputs, weights = torch.randn(4 * 2, 7, 5, dtype=torch.double), torch.randn(4, 3, 5, dtype=torch.double)
    biases = torch.randn(4, 3, dtype=torch.double)
    found = torch.func.functional_call(layer, {"weight": weights, "bias": biases}, (inputs,))
    for user in range(4):
        wanted = torch.func.functional_call(
            own, {"weight": weights[user], "bias": biases[user]}, (inputs[2 * user : 2 * user + 2],)
        )
        torch.testing.assert_close(found[2 * user : 2 * user + 2], wanted)

"""What the rules of scripts find, and the near misses that they leave alone: one small change between the two."""

import textwrap
from dataclasses import dataclass

import pytest

from hermetic.audit.script.report import audit_source
from hermetic.audit.script.source import source_of_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A script and what is found in it."""

    name: str
    text: str
    codes: tuple[str, ...] = ()


def found(text: str) -> tuple[str, ...]:
    return tuple(one.code for one in audit_source(source_of_text(textwrap.dedent(text))).findings)


def variants(name: str, template: str, **versions: tuple[str, tuple[str, ...]]) -> list[Case]:
    """Cases of one template, in which ``@`` is replaced."""
    text = textwrap.dedent(template)
    return [
        Case(name=f"{name}: {key}", text=text.replace("@", new), codes=codes) for key, (new, codes) in versions.items()
    ]


ROW = """
import torch
from itertools import chain
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("some/model", use_cache=False)


def collate(documents):
    ids = [token for document in documents for token in document["input_ids"]]
    positions = [place for document in documents for place in range(len(document["input_ids"]))]
    labels = [label for document in documents for label in [-100, *document["input_ids"][1:]]]
    @
"""

MASKS = variants(
    "a mask over a row",
    ROW,
    ones=('return {"input_ids": ids, "position_ids": positions, "attention_mask": [1] * len(ids)}', ("HM101",)),
    ones_like=(
        'return {"input_ids": ids, "position_ids": positions, "attention_mask": torch.ones_like(torch.tensor(ids))}',
        ("HM101",),
    ),
    dictionary=(
        "return dict(input_ids=ids, position_ids=positions, attention_mask=torch.ones(1, len(ids)))",
        ("HM101",),
    ),
    entry=(
        (
            'batch = {"input_ids": ids, "position_ids": positions}\n    batch["attention_mask"] = [1] * len(ids)\n'
            "    return batch"
        ),
        ("HM101",),
    ),
    of_the_documents=(
        (
            'return {"input_ids": ids, "position_ids": positions, "attention_mask": '
            'list(chain.from_iterable(document["attention_mask"] for document in documents))}'
        ),
        ("HM101",),
    ),
    numbers=(
        (
            'return {"input_ids": ids, "position_ids": positions, "attention_mask": '
            '[n for i, document in enumerate(documents) for n in [i + 1] * len(document["input_ids"])]}'
        ),
        ("HM103",),
    ),
    none=('return {"input_ids": ids, "position_ids": positions}', ()),
    of_pads=(
        'return {"input_ids": ids, "position_ids": positions, "attention_mask": torch.tensor(ids) != 0}',
        (),
    ),
    four_axes=('return {"input_ids": ids, "position_ids": positions, "attention_mask": block(documents)}', ()),
    taken_out=(
        (
            'batch = {"input_ids": ids, "position_ids": positions, "attention_mask": [1] * len(ids)}\n'
            '    batch.pop("attention_mask")\n    return batch'
        ),
        (),
    ),
    sealed=(
        (
            "import hermetic\n    hermetic.seal(model)\n"
            '    return {"input_ids": ids, "position_ids": positions, "attention_mask": [1] * len(ids)}'
        ),
        (),
    ),
)

FLAT = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening

model = AutoModelForCausalLM.from_pretrained("some/model"@)
loader = DataLoader([], batch_size=4, collate_fn=DataCollatorWithFlattening())
for batch in loader:
    model(**batch).loss.backward()
"""

CACHE = [
    *variants(
        "a cache",
        FLAT,
        default=("", ("HM102",)),
        asked_for=(", use_cache=True", ("HM102",)),
        sdpa=(', attn_implementation="sdpa"', ("HM102",)),
        off=(", use_cache=False", ()),
        unread=(", use_cache=options.cache", ()),
        flash=(', attn_implementation="flash_attention_2"', ()),
        unread_attention=(", attn_implementation=options.attention", ()),
    ),
    Case(
        name="a cache: in a Trainer, which turns it off",
        text=FLAT.replace("@", "") + "\nfrom transformers import Trainer\nTrainer(model)\n",
    ),
    Case(
        name="a cache: flash attention is set later",
        text=FLAT.replace("@", "") + "\nmodel.config._attn_implementation = 'flash_attention_2'\n",
    ),
    Case(name="a cache: turned off later", text=FLAT.replace("@", "") + "\nmodel.config.use_cache = False\n"),
    Case(
        name="a cache: turned off in the call",
        text=FLAT.replace("@", "").replace("**batch", "**batch, use_cache=False"),
    ),
    Case(
        name="a cache: padded rows",
        text=FLAT.replace("@", "").replace("DataCollatorWithFlattening()", "DefaultDataCollator()"),
    ),
    Case(
        name="a mask of ones: put into what a collator flattened",
        text=FLAT.replace("@", ", use_cache=False").replace(
            "    model", '    batch["attention_mask"] = torch.ones_like(batch["input_ids"])\n    model'
        ),
        codes=("HM101",),
    ),
    Case(
        name="a mask of ones: for generation beside the training",
        text=FLAT.replace("@", ", use_cache=False")
        + "    model.generate(**batch, attention_mask=torch.ones_like(batch['input_ids']))\n",
    ),
]

ATTEND = """
import torch
from torch import nn
import torch.nn.functional as F
from flash_attn import flash_attn_func, flash_attn_varlen_func


def attend(q, k, v, cu_seqlens, document_ids):
    @
"""

ATTENTION = variants(
    "attention",
    ATTEND.replace(", flash_attn_varlen_func", ""),
    causal=("return F.scaled_dot_product_attention(q, k, v, is_causal=True)", ("HM140",)),
    causal_flash=("return flash_attn_func(q, k, v, causal=True)", ("HM140",)),
    without_a_mask=("return F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)", ("HM140",)),
    masked=("return F.scaled_dot_product_attention(q, k, v, attn_mask=blocks(document_ids))", ()),
    not_causal=("return F.scaled_dot_product_attention(q, k, v)", ()),
    unread=("return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)", ()),
    each=("return [F.scaled_dot_product_attention(*one, is_causal=True) for one in split(q, k, v)]", ()),
    in_a_loop=("for one in split(q, k, v):\n        F.scaled_dot_product_attention(*one, is_causal=True)", ()),
    if_not_packed=(
        "if cu_seqlens is None:\n        return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        (),
    ),
)

POSITIONS = variants(
    "positions",
    ATTEND.replace("attend(q, k, v, cu_seqlens, document_ids)", "pack(documents, lengths, cu_seqlens)"),
    of_the_row=(
        (
            'ids = torch.cat([torch.tensor(d["input_ids"]) for d in documents])\n'
            '    return {"input_ids": ids, "cu_seqlens": cu_seqlens, "position_ids": torch.arange(len(ids))}'
        ),
        ("HM201",),
    ),
    to_the_last_edge=(
        "return model(position_ids=torch.arange(cu_seqlens[-1])[None], cu_seqlens=cu_seqlens)",
        ("HM201",),
    ),
    of_each=(
        'return {"cu_seqlens": cu_seqlens, "position_ids": torch.cat([torch.arange(n) for n in lengths])}',
        (),
    ),
    taken_back=(
        'return {"cu_seqlens": cu_seqlens, "position_ids": torch.arange(cu_seqlens[-1]) - starts}',
        (),
    ),
    of_one_document=('return {"position_ids": torch.arange(len(documents[0]))}', ()),
    of_constant_length=('return {"cu_seqlens": cu_seqlens, "position_ids": torch.arange(2048)}', ()),
)

KERNEL = "    return flash_attn_varlen_func(q, k, v, cu, cu, 8, 8)"

EDGES = variants(
    "edges",
    ATTEND.replace("attend(q, k, v, cu_seqlens, document_ids)", "attend(q, k, v, lengths, lens)"),
    without_zero=(
        "cu = lengths.cumsum(0).int()\n" + KERNEL,
        ("HM240",),
    ),
    by_keyword=(
        (
            "cu = torch.cumsum(lengths, dim=0, dtype=torch.int32)\n"
            "    return flash_attn_varlen_func(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu)"
        ),
        ("HM240",),
    ),
    both=("cu = lengths.cumsum(0)\n" + KERNEL, ("HM240", "HM241")),
    wide=("cu = F.pad(lengths.cumsum(0), (1, 0))\n" + KERNEL, ("HM241",)),
    narrowed=("cu = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)\n" + KERNEL, ()),
    by_name=("cu = F.pad(lengths.cumsum(0), (1, 0)).to(dtype=kind)\n" + KERNEL, ()),
    moved=("cu = F.pad(lengths.cumsum(0), (1, 0)).to(q.device)\n" + KERNEL, ("HM241",)),
    mended=("cu = lengths.cumsum(0).int()\n    cu = F.pad(cu, (1, 0))\n" + KERNEL, ()),
    with_zero_before=("cu = torch.tensor([0, *lens]).cumsum(0, dtype=torch.int32)\n" + KERNEL, ()),
    filled=(
        (
            "cu = torch.zeros(len(lens) + 1, dtype=torch.int32)\n    cu[1:] = lengths.cumsum(0)\n"
            "    return flash_attn_varlen_func(q, k, v, cu, cu, 8, 8)"
        ),
        (),
    ),
    given=("return flash_attn_varlen_func(q, k, v, lengths, lengths, 8, 8)", ()),
    first_length=("return flash_attn_varlen_func(q, k, v, cu, cu, lengths[0].item(), 8)", ("HM242",)),
    shortest=("return flash_attn_varlen_func(q, k, v, cu, cu, 8, int(lengths.min()))", ("HM242",)),
    mean=("return flash_attn_varlen_func(q, k, v, cu, cu, int(lengths.float().mean()), 8)", ("HM242",)),
    shortest_of_list=("return flash_attn_varlen_func(q, k, v, cu, cu, min(lens), 8)", ("HM242",)),
    longest=("return flash_attn_varlen_func(q, k, v, cu, cu, max(lens), int(lengths.max()))", ()),
    capped=("return flash_attn_varlen_func(q, k, v, cu, cu, min(max(lens), 4096), 8)", ()),
    of_the_row=("return flash_attn_varlen_func(q, k, v, cu, cu, q.shape[0], 8)", ()),
)

JOINED_EDGES = variants(
    "edges of two batches",
    "import torch\n\n\ndef both(a, b, cu_seqlens_a, cu_seqlens_b):\n    @\n",
    as_they_are=('return {"cu_seqlens": torch.cat([a["cu_seqlens"], b["cu_seqlens"]])}', ("HM243",)),
    by_name=("cu_seqlens = torch.cat((cu_seqlens_a, cu_seqlens_b))\n    return cu_seqlens", ("HM243",)),
    moved=('return {"cu_seqlens": torch.cat([a["cu_seqlens"], b["cu_seqlens"][1:] + a["cu_seqlens"][-1]])}', ()),
    padded=('return {"cu_seqlens": torch.cat([torch.zeros(1), a["cu_seqlens"]])}', ()),
)

BLOCKS = variants(
    "a block mask",
    """
    from torch.nn.attention.flex_attention import and_masks, create_block_mask


    def causal(b, h, i, j):
        '''Earlier tokens.'''
        return i >= j


    def make(document_ids, total):
        @
    """,
    causal=("return create_block_mask(causal, None, None, total, total)", ("HM141",)),
    reversed_order=("return create_block_mask(lambda b, h, q, kv: kv <= q, None, None, total, total)", ("HM141",)),
    both=("return create_block_mask(and_masks(causal, same), None, None, total, total)", ()),
    documents=(
        "return create_block_mask(lambda b, h, q, kv: (q >= kv) & (document_ids[q] == document_ids[kv]), 1, 1, 8, 8)",
        (),
    ),
    window=("return create_block_mask(lambda b, h, q, kv: q - kv < window, None, None, total, total)", ()),
    given=("return create_block_mask(mask_mod, None, None, total, total)", ()),
)

CUT = variants(
    "a stream",
    """
    from itertools import chain


    def group(examples, block):
        ids = list(chain.from_iterable(example["input_ids"] for example in examples))
        @
    """,
    cut=('return [{"input_ids": ids[i : i + block]} for i in range(0, len(ids), block)]', ("HM142",)),
    cut_in_a_loop=(
        (
            "rows = []\n    for start in range(0, len(ids), block):\n        rows.append(ids[start : start + block])\n"
            "    return rows"
        ),
        ("HM142",),
    ),
    whole=('return [{"input_ids": ids}]', ()),
    with_numbers=(
        (
            "document_ids = [i for i, example in enumerate(examples) for _ in example['input_ids']]\n"
            '    return [{"input_ids": ids[i : i + block], "seq_idx": document_ids[i : i + block]}'
            " for i in range(0, len(ids), block)]"
        ),
        (),
    ),
)

GROUPED = variants(
    "texts that are grouped",
    """
    from itertools import chain


    def group_texts(examples, block_size=1024):
        joined = {key: @ for key in examples}
        total = len(joined["input_ids"]) // block_size * block_size
        return {key: [ids[i : i + block_size] for i in range(0, total, block_size)] for key, ids in joined.items()}
    """,
    chained=("list(chain(*examples[key]))", ("HM142",)),
    from_iterable=("list(chain.from_iterable(examples[key]))", ("HM142",)),
    summed=("sum(examples[key], [])", ("HM142",)),
    elsewhere=("sum(others[key], [])", ()),
    with_boundaries=("list(chain(*examples[key])) if key != 'position_ids' else restart(examples)", ()),
)

STREAMED = variants(
    "a stream of texts",
    """
    import torch


    def rows(texts, tokenizer, length):
        tokenized = tokenizer(texts)["@"]
        ids = []
        for one in tokenized:
            ids.extend(one + [tokenizer.eos_token_id])
        for i in range(0, len(ids), length):
            yield {"input_ids": torch.tensor(ids[i : i + length])}
    """,
    tokens=("input_ids", ("HM142",)),
    something_else=("special_tokens_mask", ()),
)

TURNS = [
    Case(
        name="turns of one conversation are no documents",
        text="""
        def encode(tokenizer, messages, block):
            ids = []
            for message in messages:
                ids += tokenizer(message["content"])["input_ids"]
            return [{"input_ids": ids[i : i + block]} for i in range(0, len(ids), block)]
        """,
    ),
    Case(
        name="rows that are stacked are no row",
        text="""
        import torch
        from transformers import BertModel

        def encode(tokenizer, sentences):
            rows = []
            for sentence in sentences:
                rows.append(tokenizer.encode_plus(sentence, padding="max_length", return_tensors="pt")["input_ids"])
            return {"input_ids": torch.cat(rows, dim=0), "attention_mask": torch.ones(8, 8)}
        """,
    ),
    Case(
        name="chosen and rejected rows are stacked",
        text="""
        import torch
        from transformers import AutoModelForCausalLM

        def both(batch):
            return {"input_ids": torch.cat([batch["chosen_input_ids"], batch["rejected_input_ids"]]),
                    "attention_mask": torch.ones(8, 8)}
        """,
    ),
    Case(
        name="a prompt is continued token by token",
        text="""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        def generate(model, input_ids):
            for _ in range(8):
                token = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).argmax()
                input_ids = torch.cat([input_ids, token], dim=-1)
            return scaled_dot_product_attention(input_ids, input_ids, input_ids, is_causal=True)
        """,
    ),
]

REGISTERED = variants(
    "an attention function",
    """
    from torch.nn.functional import scaled_dot_product_attention
    from transformers import AutoModelForCausalLM, DataCollatorWithFlattening
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


    def mine(module, q, k, v, attention_mask, **options):
        return scaled_dot_product_attention(q, k, v, attn_mask=attention_mask), None


    def by_edges(module, q, k, v, attention_mask, cu_seq_lens_q=None, **options):
        return kernel(q, k, v, cu_seq_lens_q), None


    @
    DataCollatorWithFlattening()
    AutoModelForCausalLM.from_pretrained("some/model", attn_implementation="mine", use_cache=False)
    """,
    alone=('AttentionInterface.register("mine", mine)', ("HM143",)),
    through_the_object=('ALL_ATTENTION_FUNCTIONS.register("mine", mine)', ("HM143",)),
    with_a_mask=(
        'AttentionInterface.register("mine", mine)\nAttentionMaskInterface.register("mine", make)',
        (),
    ),
    by_edges=('AttentionInterface.register("mine", by_edges)', ()),
    another=('AttentionInterface.register("other", mine)', ()),
)

ENDS = variants(
    "boundaries",
    "import torch\n\n\ndef of(input_ids, labels, tokenizer, lengths):\n    @\n",
    numbers=("seq_idx = (input_ids == tokenizer.eos_token_id).cumsum(-1)\n    return seq_idx", ("HM144",)),
    edges=(
        (
            "ends = (input_ids == tokenizer.eos_token_id).nonzero() + 1\n"
            "    cu_seqlens = torch.cat([torch.zeros(1), ends])\n"
            "    return cu_seqlens"
        ),
        ("HM144",),
    ),
    lengths=("seq_idx = torch.repeat_interleave(torch.arange(len(lengths)), lengths)\n    return seq_idx", ()),
    labels=("labels[input_ids == tokenizer.pad_token_id] = -100\n    return labels", ()),
    count=("ends = (input_ids == tokenizer.eos_token_id).sum()\n    return ends", ()),
)

LABELS = [
    *variants(
        "labels",
        """
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained("some/model", use_cache=False)


        def step(ids, row):
            @
        """,
        sliced=("return model(input_ids=ids[:, :-1], labels=ids[:, 1:])", ("HM403",)),
        by_name=(
            "x, y = ids[:, :-1], ids[:, 1:].clone()\n    return model(input_ids=x.cuda(), labels=y.cuda())",
            ("HM403",),
        ),
        rolled=("return model(input_ids=ids, labels=torch.roll(ids, shifts=-1, dims=-1))", ("HM403",)),
        as_shifted=("return model(input_ids=ids[:, :-1], shift_labels=ids[:, 1:])", ()),
        unshifted=("return model(input_ids=ids, labels=ids)", ()),
        cut_alike=("return model(input_ids=ids[:, 1:], labels=ids[:, 1:])", ()),
        of_another=("return model(input_ids=ids[:, :-1], labels=row[:, 1:])", ()),
        of_its_own=(
            (
                "out = model(input_ids=ids[:, :-1]).logits\n"
                "    batch = dict(input_ids=ids[:, :-1], labels=ids[:, 1:])\n"
                "    return torch.nn.functional.cross_entropy(out, batch['labels'])"
            ),
            (),
        ),
    ),
    *variants(
        "labels of a row",
        ROW.replace("[-100, *document", "[0, *document"),
        the_same=('return {"input_ids": ids, "position_ids": positions, "labels": list(ids)}', ("HM401",)),
        again=(
            (
                'return {"input_ids": ids, "position_ids": positions, '
                '"labels": [t for document in documents for t in document["input_ids"]]}'
            ),
            ("HM401",),
        ),
        of_the_data=(
            (
                'return {"input_ids": ids, "position_ids": positions, '
                '"labels": [t for document in documents for t in document["labels"]]}'
            ),
            (),
        ),
        taken_off_later=(
            (
                "labels = torch.tensor(ids)\n    labels[torch.tensor(positions) == 0] = -100\n"
                '    return {"input_ids": ids, "position_ids": positions, "labels": list(ids)}'
            ),
            (),
        ),
    ),
]

OWN_LOSS = variants(
    "targets of a row",
    """
    import torch
    from torch.nn.functional import cross_entropy


    def step(model, documents, cu_seqlens):
        ids = torch.cat([document["input_ids"] for document in documents])
        logits = model(input_ids=ids, cu_seqlens=cu_seqlens)
        @
    """,
    sliced=("return cross_entropy(logits[:-1], ids[1:])", ("HM401",)),
    rolled=("return cross_entropy(logits, torch.roll(ids, -1))", ("HM401",)),
    masked=("return cross_entropy(logits[:-1], ids.masked_fill(first(cu_seqlens), -100)[1:])", ()),
    given=("return cross_entropy(logits[:-1], labels[1:])", ()),
)

SUMS = variants(
    "a mask of numbers",
    """
    import torch


    class Model(torch.nn.Module): ...


    def collate(documents):
        ids = [token for document in documents for token in document["input_ids"]]
        numbers = [n for i, document in enumerate(documents) for n in [@] * len(document["input_ids"])]
        return {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([numbers])}


    def lengths(attention_mask):
        return attention_mask.sum(dim=-1)
    """,
    of_documents=("i + 1", ("HM146",)),
    of_ones=("1", ()),
)

WEIGHTS = [
    *variants(
        "a mean",
        """
        from torch.nn.functional import cross_entropy
        from trl import pack_dataset

        rows = pack_dataset(data, 2048)


        def loss_of(logits, targets, mask):
            losses = cross_entropy(logits, targets, reduction="none")
            @
        """,
        of_rows=("return losses.mean(dim=1).mean()", ("HM501",)),
        of_masked_rows=("return ((losses * mask).sum(-1) / mask.sum(-1)).mean()", ("HM501",)),
        of_tokens=("return (losses * mask).sum() / mask.sum()", ()),
        over_all=("return losses.mean()", ()),
        of_something_else=("return mask.mean(dim=1).mean()", ()),
    ),
    Case(
        name="a mean of rows that hold one document each",
        text="""
        from torch.nn.functional import cross_entropy

        def loss_of(logits, targets):
            return cross_entropy(logits, targets, reduction="none").mean(dim=1).mean()
        """,
    ),
    *variants(
        "micro-batches",
        """
        from transformers import AutoModelForCausalLM, DataCollatorWithFlattening

        model = AutoModelForCausalLM.from_pretrained("some/model", use_cache=False)
        collate = DataCollatorWithFlattening()
        accumulation_steps = 4


        def train(batches):
            for batch in batches:
                @
        """,
        by_name=("(model(**batch).loss / accumulation_steps).backward()", ("HM540",)),
        by_number=("loss = model(**batch).loss / 8\n        loss.backward()", ("HM540",)),
        in_place=(
            "loss = model(**batch).loss\n        loss /= accumulation_steps\n        loss.backward()",
            ("HM540",),
        ),
        by_accelerate=("loss = model(**batch).loss / 8\n        accelerator.backward(loss)", ("HM540",)),
        shown=("loss = model(**batch).loss\n        loss.backward()\n        show(loss.item() / 2)", ()),
        shown_by_name=("loss = model(**batch).loss\n        loss.backward()\n        mean = loss / 2", ()),
        told=("loss = model(**batch, num_items_in_batch=n).loss / accumulation_steps\n        loss.backward()", ()),
        no_accumulation=("model(**batch).loss.backward()", ()),
        by_one=("loss = model(**batch).loss / 1\n        loss.backward()", ()),
    ),
]

STACKED = variants(
    "rows under flash attention",
    """
    import torch
    from torch.utils.data import DataLoader
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained("some/model", attn_implementation="flash_attention_2", use_cache=False)


    def pack(documents):
        ids = [token for document in documents for token in document["input_ids"]]
        return {"input_ids": ids, "position_ids": [p for d in documents for p in range(len(d["input_ids"]))]}


    def collate(rows):
        return {"input_ids": stack(rows), "position_ids": torch.stack([row["position_ids"] for row in rows])@
    """,
    several=("}\n\n\nDataLoader([], batch_size=2, collate_fn=collate)", ("HM145",)),
    one=("}\n\n\nDataLoader([], batch_size=1, collate_fn=collate)", ()),
    with_edges=(', "cu_seq_lens_q": edges(rows)}\n\n\nDataLoader([], batch_size=2, collate_fn=collate)', ()),
)

CASES = [
    *MASKS,
    *CACHE,
    *ATTENTION,
    *POSITIONS,
    *EDGES,
    *JOINED_EDGES,
    *BLOCKS,
    *CUT,
    *TURNS,
    *REGISTERED,
    *ENDS,
    *LABELS,
    *WEIGHTS,
    *STACKED,
    *GROUPED,
    *STREAMED,
    *OWN_LOSS,
    *SUMS,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_has_the_findings_that_are_declared_and_no_others(case):
    assert found(case.text) == case.codes


def test_every_check_of_scripts_has_a_case_that_it_finds_and_near_misses():
    codes = {code for case in CASES for code in case.codes}

    assert codes >= {f"HM{n}" for n in (101, 102, 103, *range(140, 147), 201, 240, 241, 242, 243)}
    assert codes >= {"HM401", "HM403", "HM501", "HM540"}
    assert sum(case.codes == () for case in CASES) > 50

"""Ways of writing training code that look like a mistake and are none, each beside a twin that is one."""

import io
import textwrap

import pytest
from rich.console import Console

from hermetic.audit.script.report import audit_source
from hermetic.audit.script.source import source_of_text
from hermetic.report.audit import audit_page

TWINS = {
    "the longest length stands at an end of what was sorted": (
        """
        from flash_attn import flash_attn_varlen_func


        def attend(q, k, v, cu, lengths):
            @
            return flash_attn_varlen_func(q, k, v, cu, cu, lengths[0], lengths[0], causal=True)
        """,
        "lengths = sorted(lengths, reverse=True)",
        "lengths = list(lengths)",
        "HM242",
    ),
    "lengths are summed for a function of the file that wants ends": (
        """
        import torch
        from flash_attn import flash_attn_varlen_func


        def numbers(total, q, cu_seqlens):
            @


        def collate(lengths, q):
            return numbers(8, q, cu_seqlens=lengths.cumsum(0, dtype=torch.int32))
        """,
        "return torch.bucketize(torch.arange(total), cu_seqlens, right=True)",
        "return flash_attn_varlen_func(q, q, q, cu_seqlens, cu_seqlens, total, total)",
        "HM240",
    ),
    "means are those of documents, which were taken out of the row": (
        """
        import torch
        import torch.nn.functional as F
        from transformers import DataCollatorWithFlattening

        collate = DataCollatorWithFlattening()


        def loss_of(logits, labels, mask, lengths):
            losses = F.cross_entropy(logits, labels, reduction="none")
            lines = @
            return ((lines * mask).sum(1) / mask.sum(1)).mean()
        """,
        "torch.nn.utils.rnn.pad_sequence(losses.split(lengths), batch_first=True)",
        "losses.view(labels.shape)",
        "HM501",
    ),
    "the mask is left out by name before the model is called": (
        """
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained("some/model", use_cache=False)


        def collate(documents):
            ids = [token for document in documents for token in document["input_ids"]]
            positions = [place for document in documents for place in range(len(document["input_ids"]))]
            return {"input_ids": ids, "position_ids": positions, "attention_mask": torch.ones(1, len(ids))}


        def step(batch):
            model(**{key: value.cuda() for key, value in batch.items() if @}).loss.backward()
        """,
        "key != 'attention_mask'",
        "torch.is_tensor(value)",
        "HM101",
    ),
    "the model is given what it needs by name, and no mask": (
        """
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained("some/model", use_cache=False)


        def collate(documents):
            ids = [token for document in documents for token in document["input_ids"]]
            positions = [place for document in documents for place in range(len(document["input_ids"]))]
            return {"input_ids": ids, "position_ids": positions, "attention_mask": torch.ones(1, len(ids))}


        def step(batch):
            model(@).loss.backward()
        """,
        "input_ids=batch['input_ids'], position_ids=batch['position_ids'], labels=batch['labels']",
        "**batch",
        "HM101",
    ),
    "a mask of pairs of tokens stands beside the positions, so a cache takes nothing away": (
        """
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained("some/model")


        def step(documents, numbers, optimizer):
            ids = [token for document in documents for token in document["input_ids"]]
            positions = [place for document in documents for place in range(len(document["input_ids"]))]
            batch = {"input_ids": ids, "position_ids": positions@}
            model(**batch).loss.backward()
        """,
        ", 'attention_mask': (numbers[:, None] == numbers[None, :]).tril()[None, None]",
        "",
        "HM102",
    ),
    "the cache is turned off by setattr": (
        """
        from transformers import AutoModelForCausalLM, DataCollatorWithFlattening

        model = AutoModelForCausalLM.from_pretrained("some/model")
        setattr(model.config, @)
        collate = DataCollatorWithFlattening()


        def step(documents):
            model(**collate(documents)).loss.backward()
        """,
        "'use_cache', False",
        "'pad_token_id', 0",
        "HM102",
    ),
    "a Lightning module's cache": (
        """
        import lightning
        from transformers import AutoModelForCausalLM, DataCollatorWithFlattening

        collate = DataCollatorWithFlattening()


        class Tuned(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = AutoModelForCausalLM.from_pretrained("some/model"@)

            def training_step(self, batch, number):
                return self.model(**batch).loss
        """,
        ", use_cache=False",
        "",
        "HM102",
    ),
    "attention after the branch that has boundaries": (
        """
        import torch.nn.functional as F


        def attend(q, k, v, document_ids=None):
            if @:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=blocks(document_ids))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        """,
        "document_ids is not None",
        "q.is_cuda",
        "HM140",
    ),
    "attention in a comprehension over documents": (
        """
        import torch
        import torch.nn.functional as F


        def attend(q, k, v, cu_seqlens):
            edges = cu_seqlens.tolist()
            return @
        """,
        (
            "torch.cat([F.scaled_dot_product_attention(q[s:e], k[s:e], v[s:e], is_causal=True)"
            " for s, e in zip(edges, edges[1:])])"
        ),
        "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "HM140",
    ),
    "attention in a function that is called for each document": (
        """
        import torch
        import torch.nn.functional as F


        def alone(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


        def attend(q, k, v, lengths):
            return @


        def collate(documents):
            return {"input_ids": [token for document in documents for token in document["input_ids"]]}
        """,
        "[alone(*one) for one in zip(q.split(lengths), k.split(lengths), v.split(lengths))]",
        "alone(q, k, v)",
        "HM140",
    ),
    "tokens are laid end to end to be counted": (
        """
        from collections import Counter
        from itertools import chain

        import torch
        import torch.nn.functional as F


        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


        seen = @(chain.from_iterable(document["input_ids"] for document in documents))
        """,
        "Counter",
        "torch.tensor",
        "HM140",
    ),
    "batches of a loader are laid end to end for a metric": (
        """
        import torch
        import torch.nn.functional as F


        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


        def predicted(@):
            return [token for one in @ for token in one["input_ids"].flatten().tolist()]
        """,
        "loader",
        "documents",
        "HM140",
    ),
    "tokens are laid end to end to be looked at, and each row of the loss is a document": (
        """
        import torch.nn.functional as F


        def first(documents):
            ids = [token for document in documents for token in document["input_ids"]]
            return @


        def loss_of(logits, labels, mask):
            losses = F.cross_entropy(logits, labels, reduction="none")
            return ((losses * mask).sum(1) / mask.sum(1)).mean()
        """,
        "ids[:100]",
        "{'input_ids': ids}",
        "HM501",
    ),
    "xformers' bias of blocks, and its triangle": (
        """
        import xformers.ops
        from xformers.ops.fmha.attn_bias import BlockDiagonalCausalMask


        def attend(q, k, v, cu_seqlens):
            return xformers.ops.memory_efficient_attention(q, k, v, attn_bias=@)
        """,
        "BlockDiagonalCausalMask.from_seqlens(cu_seqlens.diff().tolist())",
        "xformers.ops.LowerTriangularMask()",
        "HM140",
    ),
    "a score function of FlexAttention keeps documents apart": (
        """
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention


        def attend(q, k, v, document_ids):
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, len(document_ids), len(document_ids))
            return flex_attention(q, k, v, @block_mask=mask)
        """,
        "score_mod=apart(document_ids), ",
        "",
        "HM141",
    ),
    "lengths are kept of documents that are laid end to end": (
        """
        def pack(documents, block):
            ids, @ = [], []
            for document in documents:
                ids += document["input_ids"]
                @.append(len(document["input_ids"]))
            return [{"tokens": ids[i : i + block]} for i in range(0, len(ids), block)], @
        """,
        "lens",
        "kinds",
        "HM142",
    ),
    "the number of each token's document goes with it, as MPT calls it": (
        """
        from itertools import chain


        def group(examples, block=2048):
            ids = list(chain.from_iterable(examples["input_ids"]))
            own = [number for number, one in enumerate(examples["input_ids"]) for _ in one]
            return {"input_ids": [ids[i : i + block] for i in range(0, len(ids), block)], "@": own}
        """,
        "sequence_id",
        "source",
        "HM142",
    ),
    "shifted labels are for a model of somebody else": (
        """
        import torch
        from transformers import AutoTokenizer, @


        class Lines(torch.utils.data.Dataset):
            def __getitem__(self, number):
                ids = torch.tensor(self.rows[number])
                return {"input_ids": ids[:-1], "labels": ids[1:]}


        Trainer(GPT(), train_dataset=Lines())
        """,
        "set_seed\nfrom nano import GPT, Trainer",
        "Trainer",
        "HM403",
    ),
    "edges of two batches by names of their own": (
        """
        import torch


        def both(batch):
            chosen, rejected = batch["chosen_cu_seqlens"], batch["rejected_cu_seqlens"]
            edges = torch.cat((batch["chosen_cu_seqlens"], @))
            return dict(input_ids=batch["input_ids"], cu_seqlens=edges)
        """,
        'batch["rejected_cu_seqlens"][1:] + chosen[-1]',
        'batch["rejected_cu_seqlens"]',
        "HM243",
    ),
    "the longest document of a kernel that takes q, k and v in one": (
        """
        from flash_attn import flash_attn_varlen_qkvpacked_func


        def attend(qkv, cu_seqlens, lengths):
            return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, int(lengths.@()), causal=True)
        """,
        "max",
        "min",
        "HM242",
    ),
    "documents that are told apart by end tokens under a name of one's own": (
        """
        def mask(input_ids, numbers, tokenizer):
            own = @
            return (own[:, :, None] == own[:, None, :]).tril()
        """,
        "numbers.cumsum(-1)",
        "(input_ids == tokenizer.eos_token_id).cumsum(-1)",
        "HM144",
    ),
    "a share of the loss that is an entry": (
        """
        from transformers import AutoModelForCausalLM, DataCollatorWithFlattening

        model = AutoModelForCausalLM.from_pretrained("some/model", use_cache=False)
        collate = DataCollatorWithFlattening()


        def step(batches, settings):
            for documents in batches:
                loss = model(**collate(documents))["loss"] / settings["@"]
                loss.backward()
        """,
        "temperature",
        "grad_accum",
        "HM540",
    ),
}


def found(text: str) -> set[str]:
    return {one.code for one in audit_source(source_of_text(text)).findings}


@pytest.mark.parametrize("name", TWINS)
def test_what_only_looks_like_a_mistake_has_no_finding_and_its_twin_has_one(name):
    template, sound, wrong, code = TWINS[name]
    text = textwrap.dedent(template)

    assert found(text.replace("@", sound)) == set()
    assert found(text.replace("@", wrong)) == {code}


HEAD = """
import itertools

import numpy as np
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer

import hermetic

tok = AutoTokenizer.from_pretrained("some/model")
model = AutoModelForCausalLM.from_pretrained("some/model")
"""
LOOP = """
buffer = []
for text in open("lines.txt"):
    buffer += tok(text)["input_ids"] + [tok.eos_token_id]
"""
CUTS = {
    "a loop at module level, and a while with slices": """
buffer = []
for line in open("chats.jsonl"):
    buffer += tok.apply_chat_template(line, return_dict=True)["input_ids"]
    while len(buffer) >= 128:
        ids = torch.tensor([buffer[:128]])
        buffer = buffer[128:]
        model(input_ids=ids, labels=ids).loss.backward()
""",
    "a buffer that loses what was taken by del": f"""{LOOP}
rows = []
while len(buffer) > 128:
    rows.append(buffer[:128])
    del buffer[:128]
""",
    "two names in one assignment": """
def rows(texts):
    buffer, size = [], 128
    for text in texts:
        buffer.extend(tok.encode(text))
        while len(buffer) >= size:
            row, buffer = buffer[:size], buffer[size:]
            yield {"input_ids": row}
""",
    "a generator": """
def rows(stream, size):
    buffer = []
    for one in stream:
        buffer.extend(one["input_ids"])
        while len(buffer) >= size:
            yield {"input_ids": buffer[:size]}
            buffer = buffer[size:]
""",
    "an iterator that is asked for the next": """
def rows(stream, size):
    waiting, buffer = iter(stream), []
    while True:
        one = next(waiting)
        buffer = buffer + tok(one["text"]).input_ids
        if len(buffer) >= size:
            yield {"input_ids": buffer[:size]}
            buffer = buffer[size:]
""",
    "slices by range": f"""{LOOP}
rows = [{{"input_ids": buffer[i : i + 128]}} for i in range(0, len(buffer), 128)]
""",
    "slices by number": f"""{LOOP}
size = 128
rows = [buffer[k * size : (k + 1) * size] for k in range(len(buffer) // size)]
""",
    "a start that moves": f"""{LOOP}
start = 0
while start + 128 <= len(buffer):
    row = buffer[start : start + 128]
    start += 128
""",
    "a list of lists that is chained": """
lists = [tok(text)["input_ids"] for text in open("lines.txt")]
ids = list(itertools.chain.from_iterable(lists))
rows = [ids[i : i + 128] for i in range(0, len(ids), 128)]
""",
    "a list of lists that is summed": """
lists = tok(load_dataset("wikitext")["text"])["input_ids"]
ids = sum(lists, [])
rows = [ids[i : i + 128] for i in range(0, len(ids), 128)]
""",
    "tensors that are joined and folded": """
parts = []
for text in open("lines.txt"):
    parts.append(torch.tensor(tok.encode(text)))
ids = torch.cat(parts)
rows = ids[: len(ids) // 128 * 128].view(-1, 128)
""",
    "arrays that are joined and folded": """
ids = np.concatenate([np.array(tok.encode(text)) for text in open("lines.txt")])
rows = ids[: len(ids) // 128 * 128].reshape(-1, 128)
""",
    "a tensor that grows": """
ids = torch.tensor([], dtype=torch.long)
for text in open("lines.txt"):
    ids = torch.cat([ids, tok(text, return_tensors="pt")["input_ids"][0]])
rows = ids.split(128)
""",
    "texts that are grouped by map": """
def group_texts(examples):
    joined = {key: sum(examples[key], []) for key in examples}
    total = len(joined["input_ids"]) // 128 * 128
    return {key: [one[i : i + 128] for i in range(0, total, 128)] for key, one in joined.items()}


data = load_dataset("wikitext").map(group_texts, batched=True)
Trainer(model=model, train_dataset=data).train()
""",
}
BESIDE = {
    "lengths": "seq_lengths = count_each(tok)",
    "cumulative lengths": "cu_seqlens = edges_of(tok)",
    "numbers of documents": "batch = {'document_ids': numbers_of(tok)}",
    "positions that restart": "model(input_ids=ids_of(tok), position_ids=restarted(tok))",
    "a seal and positions": "hermetic.seal(model)(ids_of(tok), position_ids=restarted(tok))",
}
LET_BE = {
    "pieces of one document": """
for text in open("lines.txt"):
    ids = []
    for sentence in text.split("."):
        ids += tok.encode(sentence)
    rows = [ids[i : i + 128] for i in range(0, len(ids), 128)]
""",
    "words": """
ids = []
for word in load_dataset("words"):
    ids += tok.encode(word)
rows = [ids[i : i + 128] for i in range(0, len(ids), 128)]
""",
    "bytes": """
data = []
for text in open("lines.txt"):
    data += text.encode("utf-8")
rows = [data[i : i + 128] for i in range(0, len(data), 128)]
""",
    "a buffer that is emptied for each document": """
for text in open("lines.txt"):
    buffer = []
    buffer += tok.encode(text)
    rows = [buffer[i : i + 128] for i in range(0, len(buffer), 128)]
""",
    "one text": """
ids = tok(open("book.txt").read())["input_ids"]
rows = [ids[i : i + 128] for i in range(0, len(ids), 128)]
""",
    "padded rows that are stacked and taken by batches": """
ids = torch.cat([tok(text, padding="max_length", return_tensors="pt")["input_ids"] for text in open("lines.txt")])
rows = [ids[i : i + 8] for i in range(0, len(ids), 8)]
""",
    "a stream whose beginning is looked at": f"{LOOP}print(tok.decode(buffer[:128]))\n",
    "windows of every token": f"{LOOP}rows = [buffer[i : i + 5] for i in range(len(buffer))]\n",
    "a list of whole rows": """
rows = []
for text in open("lines.txt"):
    rows.append(tok.encode(text))
batches = [rows[i : i + 8] for i in range(0, len(rows), 8)]
""",
    "an answer that grows token by token": """
ids = tok("Once", return_tensors="pt")["input_ids"]
for _ in range(8):
    ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=-1)
rows = ids.view(-1, 128)
""",
}


@pytest.mark.parametrize("name", CUTS)
def test_documents_that_are_joined_and_cut_are_found_however_it_is_written(name):
    report = audit_source(source_of_text(HEAD + CUTS[name]))

    assert [(one.code, one.certainty) for one in report.findings] == [("HM142", "likely")]
    assert dict(report.facts)["packing"].startswith("documents end to end, cut into rows, line ")


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("kept", BESIDE)
def test_documents_that_are_joined_and_cut_with_their_boundaries_are_let_be(name, kept):
    text = textwrap.dedent(CUTS[name])
    start = max(text.find(":\n"), 0) if text.lstrip().startswith("def ") else None
    inside = f"\n{BESIDE[kept]}\n{text}" if start is None else text.replace(":\n", f":\n    {BESIDE[kept]}\n", 1)

    assert "HM142" not in found(HEAD + inside)


CHANGES = {
    "words": ("word", "text"),
    "bytes": ('text.encode("utf-8")', "tok.encode(text)"),
    "a buffer that is emptied for each document": ("for text in open", "buffer = []\nfor text in open"),
    "padded rows that are stacked and taken by batches": (
        'tok(text, padding="max_length", return_tensors="pt")["input_ids"]',
        "torch.tensor(tok.encode(text))",
    ),
    "a stream whose beginning is looked at": ("tok.decode(buffer[:128])", "torch.tensor(buffer).view(-1, 128)"),
    "windows of every token": ("range(len(buffer))", "range(0, len(buffer), 5)"),
    "a list of whole rows": (".append", ".extend"),
}
"""What makes a mistake of it."""


@pytest.mark.parametrize("name", LET_BE)
def test_what_only_looks_like_documents_that_are_cut_is_let_be(name):
    assert found(HEAD + LET_BE[name]) == set()


@pytest.mark.parametrize("name", CHANGES)
def test_a_small_change_makes_documents_that_are_cut_of_what_looks_like_them(name):
    old, new = CHANGES[name]
    wrong = LET_BE[name].replace(old, new).replace("    buffer = []\n", "")

    assert wrong.count(new) > 0
    assert found(HEAD + wrong) == {"HM142"}


@pytest.mark.parametrize("name", CUTS)
def test_a_script_that_only_measures_a_model_is_let_be(name):
    text = CUTS[name].replace(".loss.backward()", ".loss.item()").replace("Trainer(", "print(").replace(".train()", "")

    assert found(f"{HEAD}{text}\nmodel.eval()\n") == set()
    assert found(f"{HEAD}{text}\nmodel.eval()\nloss.backward()\n") == {"HM142"}


SEEN = {
    "from hermetic.integrations.trl import PackedSFTTrainer\nPackedSFTTrainer()": "PackedSFTTrainer, line 2",
    "from hermetic.integrations.transformers import SealedTrainer\nSealedTrainer()": "SealedTrainer, line 2",
    "from hermetic.integrations.transformers import SealedTrainer\nclass T(SealedTrainer): ...": (
        "SealedTrainer, line 2"
    ),
    "from hermetic.integrations import row_loader, PackedCollator\nrow_loader(r)\nPackedCollator()": (
        "row_loader, line 2, PackedCollator, line 3"
    ),
    "from trl import SFTConfig\nfrom hermetic.integrations.trl import PackedSFTTrainer as T\nT(args=SFTConfig())": (
        "PackedSFTTrainer, line 3"
    ),
}


@pytest.mark.parametrize("text", SEEN)
def test_the_facts_name_what_of_hermetic_itself_packs(text):
    report = audit_source(source_of_text(text))

    assert dict(report.facts)["packing"] == f"packed rows of hermetic: {SEEN[text]}"
    assert said(report).startswith("script.py: sound: nothing found")


def said(report) -> str:
    console = Console(width=400, file=io.StringIO())
    console.print(report)
    return console.file.getvalue()


def test_a_script_without_packing_is_not_called_sound_for_nothing_was_judged():
    report = audit_source(source_of_text("import torch\nprint(torch.ones(2))\n"))
    page = audit_page(report)

    assert report.sound
    assert dict(report.facts) == {"packing": "none seen"}
    assert said(report).splitlines()[0] == (
        "script.py: nothing found in this script of torch: no packing was seen, so there was nothing to judge; "
        "hermetic doctor -- COMMAND runs it up to its first batch and looks at that"
    )
    assert "No rule objects" not in page
    assert "no packing was seen, so there was nothing to judge." in page
    assert "hermetic doctor -- COMMAND runs it" in page


JUDGED = {
    "packing": "from trl import SFTConfig\nSFTConfig(packing=False)\n",
    "boundaries": "def attend(kernel, q, edges):\n    return kernel(q, cu_seqlens=edges)\n",
    "packed": "from transformers import DataCollatorWithFlattening\nDataCollatorWithFlattening()\n",
}


@pytest.mark.parametrize("what", JUDGED)
def test_a_script_whose_packing_or_boundaries_were_seen_and_judged_is_called_sound(what):
    report = audit_source(source_of_text(JUDGED[what]))

    assert "script.py: sound: nothing found" in said(report)
    assert "No rule objects to this script" in audit_page(report)

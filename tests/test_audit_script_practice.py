"""Ways of writing training code that look like a mistake and are none, each beside a twin that is one."""

import textwrap

import pytest

from hermetic.audit.script.report import audit_source
from hermetic.audit.script.source import source_of_text

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

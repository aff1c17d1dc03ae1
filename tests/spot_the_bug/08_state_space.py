"""A layer with a state in the manner of Mamba between two that look at one token, over rows of documents."""

import torch
from torch import nn
from torch.nn import functional


class Recurrence(nn.Module):
    """A decaying sum of what came before; it begins anew where a document does."""

    def __init__(self, width):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 3.0, width))
        self.inner = nn.Linear(width, width)

    def forward(self, x, document_ids):
        inner, decay = self.inner(x), torch.sigmoid(self.decay)
        state, states = torch.zeros_like(inner[:, 0]), []
        for place in range(x.shape[1]):
            same = document_ids[:, place] == document_ids[:, max(place - 1, 0)]
            state = torch.where(same[:, None], decay * state, 0.0) + inner[:, place]
            states.append(state)
        return x + torch.stack(states, dim=1)


class Model(nn.Module):
    def __init__(self, vocabulary=64, width=16):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.before, self.after = nn.Linear(width, width), nn.Linear(width, width)
        self.mixer = Recurrence(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids, document_ids):
        x = self.mixer(torch.tanh(self.before(self.tokens(input_ids))), document_ids)
        return self.head(torch.tanh(self.after(x)))


def collate(documents):
    ids = [token for document in documents for token in document["input_ids"]]
    numbers = [number for number, document in enumerate(documents) for _ in document["input_ids"]]
    labels = [label for document in documents for label in [-100, *document["input_ids"][1:]]]
    return {"input_ids": torch.tensor([ids]), "document_ids": torch.tensor([numbers])}, torch.tensor([labels])


def main():
    documents = [{"input_ids": torch.randint(2, 64, (length,)).tolist()} for length in (9, 4, 12, 6) * 8]
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch, labels in torch.utils.data.DataLoader(documents, batch_size=4, collate_fn=collate):
        logits = model(**batch)
        functional.cross_entropy(logits[0, :-1], labels[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

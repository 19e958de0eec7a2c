"""A round's batches, the same for every trainer."""

from torch.utils.data import DataLoader, Dataset

from fedlada import LocalTraining

STEPS = LocalTraining(steps=20, batch_size=20)


def loader(data: Dataset) -> DataLoader:
    """A round's batches; their order is drawn here, before a trainer seeds torch again."""
    return DataLoader(data, batch_sampler=[rows.tolist() for rows in STEPS.batches(len(data))])

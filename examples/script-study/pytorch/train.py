"""Trains a small convolutional network to tell circles, squares, triangles and crosses apart, in noisy images of 16 x 16 pixels."""
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE = 16
SHAPES = ["circle", "square", "triangle", "cross"]


def make_images(count, seed):
    """Images of shapes at random places and in random sizes, with noise, and the number of each one's shape."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    centers = torch.rand(count, 2, 1, 1, generator=generator) * 6 + 5
    radius = torch.rand(count, 1, 1, generator=generator) * 2 + 2.5
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    y, x = rows - centers[:, 0], columns - centers[:, 1]
    inside = torch.stack([
        x**2 + y**2 < radius**2,
        torch.maximum(x.abs(), y.abs()) < 0.9 * radius,
        (y < 0.8 * radius) & (y > 2 * x.abs() - radius),
        (torch.minimum(x.abs(), y.abs()) < 0.3 * radius) & (torch.maximum(x.abs(), y.abs()) < radius),
    ])
    images = inside[labels, torch.arange(count)].float()
    images += 0.3 * torch.randn(images.shape, generator=generator)
    return TensorDataset(images.unsqueeze(1), labels)


class Net(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * (SIZE // 4) ** 2, len(SHAPES)),
        )

    def forward(self, images):
        return self.classifier(self.features(images))


def train(model, loader, optimizer):
    """Trains one epoch; returns the mean loss."""
    model.train()
    total = 0.0
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader):
    """Returns the share of images that the model classifies correctly."""
    model.eval()
    correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=1e-2)
    parser.add_argument("--width", type=int, default=8, help="channels of the first convolution")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", metavar="FILE", help="save here after every epoch, and continue from it")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_loader = DataLoader(make_images(600, seed=1), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(make_images(600, seed=2), batch_size=200)
    model = Net(args.width, args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    first = 1
    if args.checkpoint and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    for epoch in range(first, args.epochs + 1):
        loss = train(model, train_loader, optimizer)
        accuracy = evaluate(model, test_loader)
        print(f"epoch {epoch}: loss {loss:.4f} accuracy {accuracy:.4f}", flush=True)
        if args.checkpoint:
            state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)


if __name__ == "__main__":
    main()

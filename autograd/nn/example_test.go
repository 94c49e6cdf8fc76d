// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/cohort-dist/cohort/autograd/nn"
)

// A model prints as in PyTorch.
func ExampleSequential() {
	r := rand.New(rand.NewPCG(1, 2))
	table := nn.NewEmbedding(r, 100, 8)
	table.Sparse = true
	unbiased := &nn.Linear{Weight: nn.NewLinear(r, 32, 8).Weight}
	inner := nn.Sequential{nn.NewLinear(r, 8, 32), nn.GELU, unbiased}
	fmt.Println(nn.Sequential{table, nn.NewAttention(r, 8, 2, true), nn.NewLayerNorm(8), inner, nn.NewBatchNorm(8)})
	// Output:
	// Sequential(
	//   (0): Embedding(100, 8, sparse=True)
	//   (1): Attention(8, heads=2, causal=True)
	//   (2): LayerNorm([8], eps=1e-05)
	//   (3): Sequential(
	//     (0): Linear(in_features=8, out_features=32, bias=True)
	//     (1): GELU()
	//     (2): Linear(in_features=32, out_features=8, bias=False)
	//   )
	//   (4): BatchNorm(8, eps=1e-05, momentum=0.1)
	// )
}

func ExampleSave() {
	r := rand.New(rand.NewPCG(1, 2))
	model := nn.Sequential{nn.NewLinear(r, 3, 2), nn.ReLU, nn.NewLinear(r, 2, 1)}
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "model.safetensors") // Python: safetensors.torch.load_file(path)
	if err := nn.Save(path, model); err != nil {
		fmt.Println(err)
		return
	}
	other := nn.Sequential{nn.NewLinear(r, 3, 2), nn.ReLU, nn.NewLinear(r, 2, 1)}
	if err := nn.Load(path, other); err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range other.Params() {
		fmt.Println(p.Name, p.Value.Shape())
	}
	// Output:
	// 0.weight [2 3]
	// 0.bias [2]
	// 2.weight [1 2]
	// 2.bias [1]
}

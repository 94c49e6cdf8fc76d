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

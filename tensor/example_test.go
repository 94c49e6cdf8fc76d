// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"fmt"

	"github.com/cohort-dist/cohort/tensor"
)

func ExampleFrom() {
	weights := []float32{1, 2, 3, 4, 5, 6}
	t, err := tensor.From(weights, 2, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	weights[0] = 0.5 // the tensor sees it: nothing was copied
	fmt.Println(t)
	// Output:
	// tensor([[0.5000, 2.0000, 3.0000],
	//         [4.0000, 5.0000, 6.0000]])
}

func ExampleOf() {
	t := tensor.Must(tensor.Of([][]int32{{1, 2}, {3, 4}}))
	column := tensor.Must(t.Select(1, 0))
	fmt.Println(column)
	// Output:
	// tensor([1, 3], dtype=torch.int32)
}

func ExampleData() {
	t := tensor.Must(tensor.Full(tensor.Float64, 0.25, 3))
	data, err := tensor.Data[float64](t)
	fmt.Println(data, err)
	// Output:
	// [0.25 0.25 0.25] <nil>
}

func ExampleFromStorage() {
	storage, err := tensor.NewStorage(12)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = tensor.FromStorage(storage, tensor.Float32, []int{2, 2}, nil, 0)
	fmt.Println(err)
	// Output:
	// tensor: from storage: invalid argument: shape [2 2] with strides [2 1] and offset 0 needs 4 float32 elements, the storage has 3
}

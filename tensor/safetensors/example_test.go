// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"fmt"

	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
)

func Example() {
	file := &safetensors.File{
		Tensors: map[string]*tensor.Tensor{
			"weight": tensor.Must(tensor.Of([]float32{1, 2})),
			"bias":   tensor.Must(tensor.Of([]float32{3})),
		},
		Metadata: map[string]string{"format": "pt"},
	}
	var data bytes.Buffer
	if err := file.Write(&data); err != nil {
		fmt.Println(err)
		return
	}
	back, err := safetensors.Decode(data.Bytes())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(back)
	fmt.Println(back.Tensors["weight"], back.Metadata["format"])
	// Output:
	// safetensors: 2 tensors of 12 bytes
	// tensor([1., 2.]) pt
}

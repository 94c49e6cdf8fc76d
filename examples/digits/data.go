// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/csv"
	"fmt"
	"strconv"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/tensor"
)

// The images are the test set of the UCI collection: see data/README.md.
//
//go:embed data/digits.csv.gz
var images []byte

const pixels = 64

// digit is an image of 8x8 pixels and what it shows.
type digit struct {
	pixels [pixels]float32 // 0 to 1
	class  int64
}

// load returns the images to learn from and, every fifth one, those that are kept for testing.
func load() (training, test []digit, err error) {
	unzip, err := gzip.NewReader(bytes.NewReader(images))
	if err != nil {
		return nil, nil, err
	}
	rows, err := csv.NewReader(unzip).ReadAll()
	if err != nil {
		return nil, nil, err
	}
	for i, row := range rows {
		var d digit
		if len(row) != pixels+1 {
			return nil, nil, fmt.Errorf("row %d has %d fields", i+1, len(row))
		}
		for j, text := range row {
			n, err := strconv.Atoi(text)
			switch {
			case err != nil:
				return nil, nil, fmt.Errorf("row %d: %w", i+1, err)
			case j == pixels:
				d.class = int64(n)
			default:
				d.pixels[j] = float32(n) / 16
			}
		}
		if i%5 == 4 {
			test = append(test, d)
		} else {
			training = append(training, d)
		}
	}
	return training, test, nil
}

// batch makes tensors of some images.
func batch(all []digit, which []int) (*autograd.Variable, *tensor.Tensor, error) {
	x, y := make([]float32, 0, len(which)*pixels), make([]int64, 0, len(which))
	for _, i := range which {
		x, y = append(x, all[i].pixels[:]...), append(y, all[i].class)
	}
	in, err := tensor.From(x, len(which), pixels)
	if err != nil {
		return nil, nil, err
	}
	want, err := tensor.From(y)
	return autograd.Constant(in), want, err
}

// accuracy is the share of images that the network reads correctly.
func accuracy(net nn.Module, all []digit) (float64, error) {
	which := make([]int, len(all))
	for i := range which {
		which[i] = i
	}
	x, y, err := batch(all, which)
	if err != nil {
		return 0, err
	}
	out := net.Forward(autograd.NoGrad(x.Data())).ArgMax(-1)
	if out.Err() != nil {
		return 0, out.Err()
	}
	got, err := tensor.Data[int64](out.Data())
	if err != nil {
		return 0, err
	}
	want, err := tensor.Data[int64](y)
	if err != nil {
		return 0, err
	}
	correct := 0
	for i, class := range got {
		if class == want[i] {
			correct++
		}
	}
	return float64(correct) / float64(len(all)), nil
}

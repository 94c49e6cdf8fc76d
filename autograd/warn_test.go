// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
)

// TestShapesOfMSE: two shapes are broadcast, with one warning for each line that does it.
func TestShapesOfMSE(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	r := rand.New(rand.NewPCG(1, 1))
	column, row := autograd.Constant(random(r, 0, 1, 3, 1)), autograd.Constant(random(r, 0, 1, 4))
	for range 3 {
		got := autograd.MSE(column, row, autograd.ReduceMean)
		d := column.Sub(row)
		if want := d.Mul(d).Sum().Item() / 12; got.Item()-want > 1e-15 || want-got.Item() > 1e-15 {
			t.Errorf("%v, want %v", got, want)
		}
		autograd.MSE(row, row, autograd.ReduceMean)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "warn_test.go:") ||
		!strings.Contains(text, "[3 1]") {
		t.Errorf("the log is\n%s", text)
	}
	autograd.MSE(column, row, autograd.ReduceMean)
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings of two lines", n)
	}
	if err := autograd.MSE(column, autograd.Constant(random(r, 0, 1, 2, 2)), autograd.ReduceMean).Err(); err == nil {
		t.Error("shapes that do not broadcast are taken")
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package recvalloc

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/cohort-dist/cohort/tensor"
)

// counting allocates from the heap and notes the largest block.
func counting(largest *int) func(int) (*tensor.Storage, error) {
	return func(n int) (*tensor.Storage, error) {
		*largest = max(*largest, n)
		return tensor.NewStorage(n)
	}
}

// TestClaimsAreNotBelieved: a peer that announces much and sends little has little allocated for it.
func TestClaimsAreNotBelieved(t *testing.T) {
	for _, c := range []struct {
		name            string
		claim, received int
		budget          int64
		most            int
	}{
		{"nothing arrived", 1 << 30, 0, 1 << 20, 1 << 20},
		{"nothing arrived, and the budget is empty", 1 << 30, 0, 1, small},
		{"a little arrived", 1 << 30, 1 << 20, 1, 2 << 20},
		{"much is believed only with a budget", 1 << 30, 0, 1 << 40, first},
	} {
		t.Run(c.name, func(t *testing.T) {
			largest, left := 0, c.received
			budget := NewBudget(c.budget)
			_, err := Storage(c.claim, counting(&largest), budget, func(b []byte) error {
				if len(b) > left {
					return io.ErrUnexpectedEOF
				}
				left -= len(b)
				return nil
			})
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("got %v", err)
			}
			if largest > c.most {
				t.Errorf("%d bytes were allocated, want at most %d", largest, c.most)
			}
			if budget.Left() != c.budget {
				t.Errorf("%d of %d bytes of the budget are left", budget.Left(), c.budget)
			}
		})
	}
}

// TestBytesArriveWhole: whatever the budget, the bytes are those that were sent.
func TestBytesArriveWhole(t *testing.T) {
	for _, n := range []int{0, 1, small, small + 1, 3*small + 7, 5 << 20} {
		for _, budget := range []int64{1, small / 2, 1 << 20, 1 << 30} {
			want := make([]byte, n)
			for i := range want {
				want[i] = byte(i * 7 >> 3)
			}
			r, largest := bytes.NewReader(want), 0
			s, err := Storage(n, counting(&largest), NewBudget(budget), func(b []byte) error {
				_, err := io.ReadFull(r, b)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := s.Bytes(); !bytes.Equal(got, want) {
				t.Errorf("%d bytes with a budget of %d arrived different", n, budget)
			}
		}
	}
}

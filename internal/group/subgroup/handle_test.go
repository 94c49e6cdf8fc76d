// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package subgroup

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
)

func TestHandle(t *testing.T) {
	h := GroupHandle{Rank: 2, UUID: 17, Stable: 5, Addr: "host:29500"}
	const text, other = "gloo:2:17:5:host:29500", "gloo:0:-1:0:"
	if h.String() != text {
		t.Errorf("%q, want %q", h, text)
	}
	if place, err := h.PlaceIn("op", []string{other, text}); place != 1 || err != nil {
		t.Errorf("place %d, %v", place, err)
	}
	if ranks := RanksIn(17, []string{other, text, "gloo:0:17:3:", "gloo:3:18:4:"}); !slices.Equal(ranks, []int{-1, 2, 0, -1}) {
		t.Errorf("ranks %v", ranks)
	}
	if ranks := RanksIn(-1, []string{other}); !slices.Equal(ranks, []int{-1}) {
		t.Errorf("ranks %v in no group", ranks)
	}
	for _, list := range [][]string{
		nil, {other}, {text, text}, {text, ""}, {text, "nccl:0:0:0:x"}, {text, "gloo:0:0:0"}, {text, "gloo:0:x:0:a"},
	} {
		if _, err := h.PlaceIn("op", list); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%q: %v", list, err)
		}
	}
}

// TestNext: a name is that of every version that the PyTorch ranks may be, or there is none and the error names the option.
func TestNext(t *testing.T) {
	levels := []torchcaps.Level{torchcaps.V2_6, torchcaps.V2_12, torchcaps.V2_14}
	refused, named := 0, 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		low, high := r.IntN(len(levels)), r.IntN(len(levels))
		if low > high {
			low, high = high, low
		}
		var unsure NameCounter
		exact := make([]NameCounter, len(levels))
		listed := 0
		for range 1 + r.IntN(6) {
			localSync, member := r.IntN(2) == 0, r.IntN(4) > 0
			member = member || localSync
			globals := []int{0, 1, 2}[:1+r.IntN(3)]
			name, err := unsure.Next("op", torchcaps.Peers{Low: levels[low], High: levels[high]}, globals, localSync, listed)
			for i := low; i <= high; i++ {
				want, failure := exact[i].Next("op", torchcaps.Exactly(levels[i]), globals, localSync, listed)
				if failure != nil {
					t.Fatal(failure)
				}
				if err == nil && name != want {
					t.Fatalf("seed %d: %v to %v: %q, and %v says %q", seed, levels[low], levels[high], name, levels[i], want)
				}
			}
			if err != nil {
				if low == high || !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), torchcaps.Option) ||
					!strings.Contains(err.Error(), torchcaps.Variable) {
					t.Fatalf("seed %d: %v", seed, err)
				}
				refused++
				break // the program knows now
			}
			named++
			if member {
				listed++
			}
		}
	}
	if refused < 50 || named < 500 {
		t.Errorf("%d were refused and %d named", refused, named)
	}
}

// TestRefusedNameSaysWhy: the error does not speak of a group with WithLocalSync if there was none.
func TestRefusedNameSaysWhy(t *testing.T) {
	unsure := torchcaps.Peers{Low: torchcaps.V2_6, High: torchcaps.V2_14}
	var c NameCounter
	if _, err := c.Next("op", unsure, []int{0, 1}, false, 0); err != nil {
		t.Fatal(err)
	}
	_, err := c.Next("op", unsure, []int{0, 1}, true, 0) // the first one is closed again
	if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), "once a group was closed") ||
		strings.Contains(err.Error(), "after a group made with") {
		t.Errorf("the first group with local synchronization: %v", err)
	}
}

func TestTake(t *testing.T) {
	var c NameCounter
	if !c.Take("a") || !c.Take("b") || c.Take("a") {
		t.Error("a name is taken once")
	}
}

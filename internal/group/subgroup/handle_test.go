// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package subgroup

import (
	"errors"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
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

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pyconv

import (
	"testing"

	"github.com/cohort-dist/cohort/rpc/py"
)

func TestContains(t *testing.T) {
	t.Parallel()
	pointer, other := new(int), new(int)
	endless := []any{nil, other}
	endless[0] = endless
	for name, c := range map[string]struct {
		value any
		want  bool
	}{
		"itself":         {pointer, true},
		"another":        {other, false},
		"nothing":        {nil, false},
		"in a list":      {[]any{1, py.Tuple{py.Set{pointer}}}, true},
		"as a key":       {py.NewDict(pointer, 1), true},
		"as a value":     {py.NewDict("k", py.FrozenSet{other, pointer}), true},
		"in an object":   {&py.Object{KwArgs: py.NewDict("k", pointer)}, true},
		"a list in self": {endless, false},
		"empty ones":     {[]any{(*py.Dict)(nil), (*py.Object)(nil), []any{}}, false},
	} {
		if got := Contains(c.value, pointer); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if bytes := py.ByteArray("x"); Contains([]any{bytes}, bytes) {
		t.Error("bytes are taken for a pointer")
	}
}

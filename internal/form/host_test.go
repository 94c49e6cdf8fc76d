// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import "testing"

// TestOnlyHostIsTorch: what the store can do says something of a PyTorch rank only if that rank hosts it.
func TestOnlyHostIsTorch(t *testing.T) {
	python, native := Member{}, Member{Go: true}
	for name, c := range map[string]struct {
		world []Member
		agent string
		want  bool
	}{
		"rank 0":                      {[]Member{python, native, native}, "", true},
		"rank 0, and another":         {[]Member{python, native, python}, "", false},
		"another rank":                {[]Member{native, python}, "", false},
		"rank 0 that torchrun starts": {[]Member{python, native}, "True", false},
		"another, and torchrun":       {[]Member{native, python}, "True", false},
		"as init_process_group reads": {[]Member{python, native}, "False", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TORCHELASTIC_USE_AGENT_STORE", c.agent)
			if got := onlyHostIsTorch(c.world); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import "testing"

func TestSubstitute(t *testing.T) {
	t.Parallel()
	values := map[string]string{"local_rank": "3"}
	for text, want := range map[string]string{
		"plain": "plain", "${local_rank}": "3", "$local_rank": "3", "x${local_rank}y": "x3y", "$$": "$", "$${local_rank}": "${local_rank}",
		"${other}": "${other}", "$other": "$other", "${local_rank": "${local_rank", "$": "$", "a$": "a$", "$1": "$1",
		"$local_rank2":  "$local_rank2",
		"$local_rank-x": "3-x", "${}": "${}",
	} {
		if got := substitute(text, values); got != want {
			t.Errorf("substitute(%q) is %q, want %q", text, got, want)
		}
	}
}

func TestDevices(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "4, GPU-7")
	c := Config{VirtualLocalRank: true}
	if d, err := c.device(1); d != "GPU-7" || err != nil {
		t.Errorf("device %q, %v", d, err)
	}
	if _, err := c.device(2); err == nil {
		t.Error("a device that is not there")
	}
}

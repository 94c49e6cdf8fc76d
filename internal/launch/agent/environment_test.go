// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import "testing"

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

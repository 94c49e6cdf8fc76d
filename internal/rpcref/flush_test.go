// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"testing"

	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// TestAwaited: what a program waits for is answered at once, what merely goes along does not end the lending of a link.
func TestAwaited(t *testing.T) {
	idle := rrefcore.Frame{Msgs: []rrefcore.Message{{Kind: rrefcore.Announce}, {Kind: rrefcore.Delete}, {Kind: rrefcore.Created}}}
	if awaited(idle) || awaited(rrefcore.Frame{}) {
		t.Error("somebody waits for the end of a reference, or for an acknowledgement")
	}
	for _, kind := range []rrefcore.Kind{rrefcore.ForkRequest, rrefcore.ChildAccept, rrefcore.ForkReply, rrefcore.Cancel, rrefcore.Handoff, rrefcore.Withdraw} {
		if !awaited(rrefcore.Frame{Msgs: append(idle.Msgs, rrefcore.Message{Kind: kind})}) {
			t.Errorf("nobody waits for the answer to %v", kind)
		}
	}
}

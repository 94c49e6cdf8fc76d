// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

func anyID(epochs ...rrefcore.Epoch) *rapid.Generator[rrefcore.ID] {
	return rapid.Custom(func(t *rapid.T) rrefcore.ID {
		if rapid.IntRange(0, 3).Draw(t, "none") == 0 {
			return rrefcore.ID{}
		}
		return rrefcore.ID{
			On: rrefcore.Worker(rapid.Int16().Draw(t, "on")), N: rapid.Uint64().Draw(t, "n"),
			Epoch: rapid.OneOf(rapid.SampledFrom(epochs),
				rapid.Map(rapid.Uint64(), func(u uint64) rrefcore.Epoch { return rrefcore.Epoch(u) })).Draw(t, "epoch"),
		}
	})
}

func TestControlFrame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rrefcore.Frame{
			From: rrefcore.Worker(rapid.Int16().Draw(t, "from")), To: rrefcore.Worker(rapid.Int16().Draw(t, "to")),
			Epoch: rrefcore.Epoch(rapid.Uint64().Draw(t, "epoch")), ToEpoch: rrefcore.Epoch(rapid.Uint64().Draw(t, "to epoch")),
			Session: rapid.Uint32().Draw(t, "session"), Floor: rapid.Uint64().Draw(t, "floor"), First: rapid.Uint64().Draw(t, "first"),
			Ack: rapid.Uint64().Draw(t, "ack"), Stamp: time.Duration(rapid.Int64().Draw(t, "stamp")),
			Echo: time.Duration(rapid.Int64().Draw(t, "echo")),
		}
		ids := anyID(0, f.Epoch, f.ToEpoch)
		for range rapid.IntRange(0, 5).Draw(t, "messages") {
			f.Msgs = append(f.Msgs, rrefcore.Message{
				Kind: rrefcore.Kind(rapid.IntRange(int(rrefcore.ForkRequest), int(rrefcore.Withdraw)).Draw(t, "kind")),
				Code: rrefcore.Code(rapid.Byte().Draw(t, "code")),
				ID:   ids.Draw(t, "id"), Fork: ids.Draw(t, "fork"), Root: ids.Draw(t, "root"),
				Owner: rrefcore.Worker(rapid.Int16().Draw(t, "owner")), OwnerEpoch: rrefcore.Epoch(rapid.Uint64().Draw(t, "owner epoch")),
				Key: rapid.SampledFrom([]rrefcore.Key{{}, {1}, {15: 2}}).Draw(t, "key"),
			})
		}
		b := appendControl(nil, f)
		got, err := parseControl(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(f, got); diff != "" {
			t.Fatal(diff)
		}
		for n := range b {
			if _, err := parseControl(b[:n], nil); err == nil {
				t.Fatalf("a frame cut to %d of %d bytes was taken", n, len(b))
			}
		}
	})
}

func FuzzControlFrame(f *testing.F) {
	f.Add(appendControl(nil, rrefcore.Frame{
		From: 1, To: 2, Epoch: 3,
		Msgs: []rrefcore.Message{
			{Kind: rrefcore.Delete, ID: rrefcore.ID{On: 1, N: 2, Epoch: 3}},
			{Kind: rrefcore.Handoff, Key: rrefcore.Key{7}},
		},
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		frame, err := parseControl(data, nil)
		if err != nil {
			return
		}
		again, err := parseControl(appendControl(nil, frame), nil)
		if err != nil || !cmp.Equal(frame, again) {
			t.Fatalf("%+v, %+v, %v", frame, again, err)
		}
	})
}

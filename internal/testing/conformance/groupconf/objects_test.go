// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
)

// objects are of several sizes, none of them alike. PyTorch's tests pickle what they send; here an object is its bytes.
func objects() [][]byte {
	return [][]byte{[]byte("a string"), {}, bytes.Repeat([]byte{7}, 100_000), {0}, []byte(`{"key": [1, 2]}`), bytes.Repeat([]byte("x"), 17)}
}

func objectOf(rank int) []byte { return objects()[rank%len(objects())] }

func wantObjects(got [][]byte) error {
	for r, o := range got {
		if !bytes.Equal(o, objectOf(r)) {
			return fmt.Errorf("the object of rank %d has %d bytes, want %d", r, len(o), len(objectOf(r)))
		}
	}
	return nil
}

func TestAllGatherObject(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		got, err := g.AllGatherObject(ctx, objectOf(int(g.Rank())))
		if err != nil || len(got) != g.Size() {
			return fmt.Errorf("%d objects, %w", len(got), err)
		}
		return wantObjects(got)
	})
}

func TestGatherObject(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		for root := range g.Size() {
			got, err := g.GatherObject(ctx, objectOf(int(g.Rank())), cohort.Rank(root))
			if err != nil {
				return err
			}
			if (got != nil) != (cohort.Rank(root) == g.Rank()) {
				return fmt.Errorf("root %d: %d objects", root, len(got))
			}
			if err := wantObjects(got); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestBroadcastObjects(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		for root := range g.Size() {
			list := make([][]byte, len(objects()))
			if cohort.Rank(root) == g.Rank() {
				copy(list, objects())
			}
			if err := g.BroadcastObjects(ctx, list, cohort.Rank(root)); err != nil {
				return err
			}
			for i, want := range objects() {
				if !bytes.Equal(list[i], want) {
					return fmt.Errorf("object %d from %d has %d bytes", i, root, len(list[i]))
				}
			}
			// One object alone.
			one := [][]byte{nil}
			if cohort.Rank(root) == g.Rank() {
				one[0] = objects()[2]
			}
			if err := g.BroadcastObjects(ctx, one, cohort.Rank(root)); err != nil || !bytes.Equal(one[0], objects()[2]) {
				return fmt.Errorf("%d bytes, %w", len(one[0]), err)
			}
		}
		return nil
	})
}

func TestScatterObjects(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		for root := range g.Size() {
			var list [][]byte
			if cohort.Rank(root) == g.Rank() {
				for r := range g.Size() {
					list = append(list, objectOf(r))
				}
			}
			got, err := g.ScatterObjects(ctx, list, cohort.Rank(root))
			if err != nil || !bytes.Equal(got, objectOf(int(g.Rank()))) {
				return fmt.Errorf("%d bytes, %w", len(got), err)
			}
		}
		if _, err := g.ScatterObjects(ctx, objects()[:1], g.Rank()); !errors.Is(err, cohort.InvalidArgument) {
			return fmt.Errorf("a list that is too short: %w", err)
		}
		return nil
	})
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/store"
)

// TestRanksUnderAnotherPrefix: ranks that came under different prefixes of one store never meet. When their time is over each says under
// which prefix the other has come, whether it is a Go rank or one of PyTorch.
func TestRanksUnderAnotherPrefix(t *testing.T) {
	t.Parallel()
	torch := func(layout gloo.Layout) func(ctx context.Context, s store.Store) {
		return func(ctx context.Context, s store.Store) {
			base := layout.MeshPrefix(gloo.Join("theirs", gloo.DefaultPrefix), gloo.GroupName(0))
			_ = s.Set(ctx, layout.FirstKey(base, 1), []byte("host"))
		}
	}
	for name, others := range map[string]func(ctx context.Context, s store.Store){
		"Go": func(ctx context.Context, s store.Store) {
			_, _ = New(ctx, s, 1, 2, WithStorePrefix("theirs"))
		},
		"PyTorch 1.13": torch(gloo.Torch113),
		"PyTorch 2.6":  torch(gloo.Torch26),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := store.NewMemory()
			defer func() { _ = s.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			done := make(chan struct{})
			go func() { defer close(done); others(ctx, s) }()
			short, stop := context.WithTimeout(ctx, time.Second)
			defer stop()
			_, err := New(short, s, 0, 2, WithStorePrefix("ours"))
			if !errors.Is(err, cohort.DeadlineExceeded) || !strings.Contains(err.Error(), `rank 1 has come under the prefix "theirs"`) ||
				!strings.Contains(err.Error(), `this rank's is "ours"`) {
				t.Error(err)
				keys, _ := s.ListKeys(ctx)
				t.Log(keys)
			}
			cancel()
			<-done
		})
	}
}

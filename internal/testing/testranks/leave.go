// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testranks

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cohort-dist/cohort/internal/group/collective"
)

// Leave runs a request of an engine that can go on with it, and leaves it up to two times in the middle, after at most so long each.
func Leave(run func(ctx context.Context, q *collective.Request) error, q *collective.Request, seed uint64, longest time.Duration) error {
	random := rand.New(rand.NewPCG(seed, 5)) //nolint:gosec // a test that can be repeated
	for range random.IntN(3) {
		ctx, cancel := context.WithCancel(context.Background())
		if random.IntN(2) == 0 {
			cancel()
		} else {
			time.AfterFunc(time.Duration(random.Int64N(int64(longest))), cancel)
		}
		err := run(ctx, q)
		cancel()
		if _, ok := errors.AsType[*collective.Interrupted](err); !ok {
			return err
		}
	}
	return run(context.Background(), q)
}

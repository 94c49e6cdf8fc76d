// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native"
)

// BenchmarkLanes runs all-reduces and broadcasts of 32 MiB between two ranks of this process over one lane or several.
// With a rate, each connection is held to that many bytes in a second, as clouds do; without one, the cores are the
// limit. Decision 34 rests on it.
func BenchmarkLanes(b *testing.B) {
	const size = 32 << 20
	for _, rate := range []int{50 << 20, 0} {
		for _, kind := range []collective.Kind{collective.AllReduce, collective.Broadcast} {
			for _, lanes := range []int{1, 2, 4} {
				b.Run(fmt.Sprintf("rate=%d/%v/lanes=%d", rate, kind, lanes), func(b *testing.B) {
					meshes := world(b, 2, lanes, nil)
					for _, m := range meshes {
						if p, ok := m.(interface{ Pace(rate int) error }); ok && rate > 0 {
							if err := p.Pace(rate); err != nil {
								b.Fatal(err)
							}
						}
					}
					b.SetBytes(size)
					b.ResetTimer()
					var wg sync.WaitGroup
					for r, m := range meshes {
						wg.Go(func() {
							e, q := native.NewEngine(m, native.Tuning{}), request(kind, 0, r, 2, size, false)
							for i := range b.N {
								q.Tag = uint32(2 * i)
								if err := e.Run(context.Background(), &q); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
				})
			}
		}
	}
}

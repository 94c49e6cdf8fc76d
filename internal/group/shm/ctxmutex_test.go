// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// One goroutine holds the mutex at a time, and every waiter gets it in the end, also when others give up between being woken and taking it.
func TestCtxMutex(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			lock := newCtxMutex()
			held, got, left := 0, 0, 0
			var mu sync.Mutex
			var all sync.WaitGroup
			for i := range uint64(12) {
				all.Go(func() {
					random := rand.New(rand.NewPCG(seed, i))
					for range 40 {
						var over <-chan time.Time
						if random.IntN(2) == 0 {
							over = time.After(time.Duration(random.IntN(30)))
						}
						stop := make(chan struct{})
						if over != nil {
							all.Go(func() { <-over; close(stop) })
						}
						var ok bool
						if random.IntN(2) == 0 {
							ok = lock.Lock(stop, nil)
						} else {
							ok = lock.Lock(nil, stop)
						}
						mu.Lock()
						if ok {
							got++
							held++
						} else {
							left++
							if over == nil {
								t.Error("it left without a reason")
							}
						}
						if held > 1 {
							t.Error("two hold the mutex")
						}
						mu.Unlock()
						if !ok {
							continue
						}
						time.Sleep(time.Duration(random.IntN(3)))
						mu.Lock()
						held--
						mu.Unlock()
						lock.Unlock()
						time.Sleep(time.Duration(random.IntN(3)))
					}
				})
			}
			all.Wait()
			if got+left != 12*40 || got == 0 || left == 0 {
				t.Errorf("%d got the turn and %d left", got, left)
			}
		})
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpointtest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// An event that an unowned goroutine begins after Wait is over before End returns.
func TestEndWaitsForLateEvents(t *testing.T) {
	Test(t, Scenario{
		Name: "late", Virtual: true, Points: []string{"test.late"}, Events: []Event{{Name: "slow", Where: Beside}, {Name: "here"}},
		Run: func(r *Run) {
			var begun, ended atomic.Int32
			for _, event := range []string{"slow", "here"} {
				r.On(event, func() {
					begun.Add(1)
					time.Sleep(time.Second)
					ended.Add(1)
				})
			}
			r.Begin()
			r.Wait()
			late := make(chan struct{})
			go func() {
				defer close(late)
				failpoint.At("test.late")
			}()
			time.Sleep(100 * time.Millisecond) // virtual
			r.End()
			if begun.Load() != ended.Load() {
				r.Errorf("%d events have begun and %d ended", begun.Load(), ended.Load())
			}
			<-late
		},
	})
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/store"
)

// TestStarter: a process that starts members elsewhere reserves their numbers and reports when they have ended, and
// learns at the end which of them had not been heard of.
func TestStarter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s := store.NewMemory()
		defer func() { _ = s.Close() }()
		c, err := elastic.New(s, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = c.Run(ctx) })
		starter, err := elastic.NewStarter(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = starter.Reserve(ctx, 2); err != nil {
			t.Fatal(err)
		}
		first, err := starter.Reserve(ctx, 3)
		if err != nil || first != 2 {
			t.Fatal(first, err)
		}
		var members []*elastic.Member
		for i := range elastic.ID(3) {
			m, joinErr := elastic.Join(ctx, s, elastic.WithID(first+i))
			if joinErr != nil {
				t.Fatal(joinErr)
			}
			members = append(members, m)
		}
		if _, err = members[0].Next(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err = starter.Lost(ctx, first); err != nil { // its signs of life go on, and do not matter
			t.Fatal(err)
		}
		r, err := members[1].Next(ctx, "b")
		if err != nil || !slices.Equal(r.Handles, []string{"b"}) || time.Since(began) > time.Second {
			t.Errorf("%v, %v after %v", r, err, time.Since(began))
		}
		_ = members[0].Close()
		_ = members[1].Close() // it hangs, and the third one comes in
		if r, err = members[2].Next(ctx, "c"); err != nil || !slices.Equal(r.Handles, []string{"c"}) {
			t.Errorf("%v, %v", r, err)
		}
		wg.Go(func() {
			if silent, failed := starter.Ended(ctx); failed != nil || !slices.Equal(silent, []elastic.ID{first + 1}) {
				t.Errorf("at the end %v had not been heard of, %v", silent, failed)
			}
		})
		time.Sleep(10 * time.Minute) // longer than the store's own limit
		if err = members[2].Done(ctx); err != nil {
			t.Error(err)
		}
		wg.Wait()
		_ = members[2].Close()
		if n, err := store.Prefix(elastic.DefaultPrefix, s).Check(ctx, "ask/2"); n || err != nil {
			t.Errorf("what was said of a member that is lost is still there: %v", err)
		}
	})
	if _, err := elastic.NewStarter(nil); !errors.Is(err, cohort.InvalidArgument) {
		t.Error(err)
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohort_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
)

func ExampleThen() {
	celsius := cohort.NewPromise[float64]()
	text := cohort.Then(celsius.Future(), func(c float64, err error) (string, error) { return fmt.Sprintf("%.0f F", c*9/5+32), err })
	celsius.Complete(100, nil)
	fmt.Println(text.Await(context.Background()))
	// Output: 212 F <nil>
}

func ExampleAll() {
	a, b := cohort.NewPromise[int](), cohort.NewPromise[int]()
	both := cohort.All(a.Future(), b.Future())
	b.Complete(2, nil)
	a.Complete(1, nil)
	fmt.Println(both.Await(context.Background()))
	// Output: [1 2] <nil>
}

func TestThenSeesAndReplacesErrors(t *testing.T) {
	f := cohort.NewPromise[int]()
	cured := cohort.Then(f.Future(), func(_ int, err error) (string, error) { return "cured of " + err.Error(), nil })
	failed := cohort.Then(f.Future(), func(v int, err error) (int, error) { return v, err })
	bad := errors.New("bad")
	f.Complete(0, bad)
	if v, err := cured.Await(t.Context()); v != "cured of bad" || err != nil {
		t.Errorf("got %q, %v", v, err)
	}
	if _, err := failed.Await(t.Context()); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
}

func TestAllFailsEarly(t *testing.T) {
	a, b, c := cohort.NewPromise[int](), cohort.NewPromise[int](), cohort.NewPromise[int]()
	all := cohort.All(a.Future(), b.Future(), c.Future())
	bad := errors.New("bad")
	a.Complete(1, nil)
	if all.Completed() {
		t.Fatal("complete too early")
	}
	b.Complete(0, bad)
	if _, err := all.Await(t.Context()); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
	c.Complete(3, nil) // late: changes nothing
	if v, err := cohort.All[int]().Await(t.Context()); err != nil || !slices.Equal(v, []int{}) {
		t.Errorf("none: %v, %v", v, err)
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package jobscan

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

// clocks are not known here.
type clocks struct{}

func (*clocks) idle(int, int) time.Duration { return 0 }

// Idle returns how long a thread has not run; 0: not known.
func Idle(context.Context, int, int) time.Duration { return 0 }

func wakes(int, int) time.Duration { return 0 }

func lockHolder(string, int, map[int]int) *verdict.Holder { return nil }

// ReadKernelLog returns nothing: this system's log is not read.
func ReadKernelLog(string) []string { return nil }

// sinceBoot is not known here.
func sinceBoot() time.Duration { return 0 }

// placeOf finds no differences here, so that no helper is ever started.
func placeOf(string, int) (place, error) { return place{}, nil }

func startHelper([]string) (helperProcess, error) { return helperProcess{}, errors.ErrUnsupported }

// BecomeUser is not possible on this system.
func BecomeUser(int, ...string) error { return errors.ErrUnsupported }

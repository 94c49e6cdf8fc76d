// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package rundir

import (
	"errors"
	"io"
)

func (d *Dir) hold() {}

// Alive is the file that says that the run lives, "" if there is none.
func (d *Dir) Alive() string { return "" }

// Hold locks the file of a run.
func Hold(string) (io.Closer, error) { return nil, errors.ErrUnsupported }

// Dead is the folder of a run whose launcher and supervisor have ended.
type Dead struct{ Path string }

// FindDead finds none.
func FindDead(string, []string) []*Dead { return nil }

// Remove removes nothing.
func (*Dead) Remove() error { return nil }

// Close does nothing.
func (*Dead) Close() {}

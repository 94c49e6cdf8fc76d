// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd && !windows

package storelog

import (
	"errors"
	"os"
)

func lockFile(*os.File) error { return errors.ErrUnsupported }

func syncDir(string) error { return errors.ErrUnsupported }

func diskFull(error) bool { return false }

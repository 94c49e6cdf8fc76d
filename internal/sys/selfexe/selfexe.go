// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package selfexe finds the program that this process runs, to start it again.
package selfexe

import "os"

// Path returns a name that starts the program of this process, the same file that it was started from: also after an upgrade has put
// another one into its place, or it was removed, as long as the system can.
func Path() (string, error) {
	name, err := os.Executable()
	if err != nil {
		return "", err
	}
	if link != "" && replaced(name) {
		return link, nil
	}
	return name, nil
}

func replaced(name string) bool {
	running, err := os.Stat(link)
	if err != nil {
		return false
	}
	now, err := os.Stat(name)
	return err != nil || !os.SameFile(now, running)
}

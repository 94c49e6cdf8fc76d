// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"os"
)

// Filter is a file for the lines of several streams that hold one of some texts. A nil Filter holds none.
type Filter struct {
	out   *Output
	file  *os.File
	texts []string
}

// NewFilter returns a Filter that owns the file.
func NewFilter(file *os.File, texts []string) *Filter {
	return &Filter{out: NewOutput(file), file: file, texts: texts}
}

// Apply has a stream hand its lines to the filter.
func (f *Filter) Apply(s *Stream) {
	if f != nil {
		s.Filtered, s.Keep = f.out, f.keep
	}
}

func (f *Filter) keep(line []byte) bool {
	for _, t := range f.texts {
		if bytes.Contains(line, []byte(t)) {
			return true
		}
	}
	return false
}

// Close closes the file.
func (f *Filter) Close() {
	if f != nil {
		_ = f.file.Close()
	}
}

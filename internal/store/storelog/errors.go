// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"errors"
	"fmt"
)

// ErrFailed is in the chain of every error after a write or a sync has failed. It is final for the process: the folder has
// to be opened again.
var ErrFailed = errors.New("the log has failed")

// ErrLocked is in the chain of the error of an Open whose folder another process uses.
var ErrLocked = errors.New("the folder is in use")

// CorruptError is damage that no crash explains: acknowledged records are lost or changed.
type CorruptError struct {
	File   string `json:"file"`   // its name in the folder
	Offset int64  `json:"offset"` // where in the file
	LSN    LSN    `json:"lsn"`    // the first record that is concerned; 0 if it is none or not known
	Reason string `json:"reason"`
}

// Error returns a sentence.
func (e *CorruptError) Error() string {
	text := fmt.Sprintf("%s is damaged at offset %d", e.File, e.Offset)
	if e.LSN != 0 {
		text += fmt.Sprintf(" (record %d)", e.LSN)
	}
	return text + ": " + e.Reason
}

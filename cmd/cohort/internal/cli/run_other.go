// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cli

import "os"

// signalsOfJobs are those that end a job.
var signalsOfJobs = []os.Signal{os.Interrupt}

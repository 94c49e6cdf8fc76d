// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package joblog handles the output of a job's workers. It copies it to the screen in whole lines, with or without a
// prefix, and to files, and keeps the last lines of each worker for the report of a failure.
//
// [Output] is a screen or file that several workers share. [Copy] copies one stream of one worker until it ends. [Pipe]
// is such a stream from the worker on. [Folder] merges identical lines of several workers.
package joblog

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package joblog carries what the workers of a job print: to the screen in whole lines, with or without a prefix, and to
// files; and it keeps the last lines of each worker for the report of a failure.
//
// [Output] is a screen or file that several workers share. [Copy] moves the output of one stream of one worker until its
// end. [Folder] joins identical lines of several workers.
package joblog

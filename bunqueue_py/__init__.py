"""bunqueue_py: the job queue that a Python program carries inside itself.

The layers, downward only:

    errors types durations config serializers clock ids sync     the foundation
    model                                                         what a job is
    shard stores registry storage                                 where it is kept
    state                                                         all of it, wired together
    ops                                                           the verbs
    tasks observe                                                 what happens by itself
    client.protocol client.job  manager readonly                  the front door
    client                                                        queues and workers
"""

import logging as _logging

from .client.flow_producer import FlowProducer as FlowProducer
from .client.flow_producer import FlowResult as FlowResult
from .client.job import Ack as Ack
from .client.job import DlqEntry as DlqEntry
from .client.job import Job as Job
from .client.job_log_filter import JobLogFilter as JobLogFilter
from .client.queue import Queue as Queue
from .client.queue_events import QueueEvents as QueueEvents
from .client.worker import Worker as Worker
from .config import ManagerConfig as ManagerConfig
from .default_manager import configure as configure
from .default_manager import get_default_manager as get_default_manager
from .errors import BulkAddError as BulkAddError
from .errors import BunqueueError as BunqueueError
from .errors import CronError as CronError
from .errors import DelayJob as DelayJob
from .errors import DuplicateJobError as DuplicateJobError
from .errors import FlowError as FlowError
from .errors import ForkedManagerError as ForkedManagerError
from .errors import GroupFullError as GroupFullError
from .errors import JobFailedError as JobFailedError
from .errors import JobInterrupted as JobInterrupted
from .errors import JobNotFoundError as JobNotFoundError
from .errors import JobStateError as JobStateError
from .errors import LockError as LockError
from .errors import ManagerClosedError as ManagerClosedError
from .errors import RateLimited as RateLimited
from .errors import ResultExpiredError as ResultExpiredError
from .errors import SchemaVersionError as SchemaVersionError
from .errors import SerializationError as SerializationError
from .errors import StorageCorruptError as StorageCorruptError
from .errors import StorageError as StorageError
from .errors import StorageFullError as StorageFullError
from .errors import StorageLockedError as StorageLockedError
from .errors import UnrecoverableError as UnrecoverableError
from .errors import ValidationError as ValidationError
from .errors import WaitForChildren as WaitForChildren
from .errors import WaitTimeoutError as WaitTimeoutError
from .manager import QueueManager as QueueManager
from .model.backoff import Backoff as Backoff
from .model.events import JobEvent as JobEvent
from .model.figures import Latency as Latency
from .model.figures import ListenerBuffer as ListenerBuffer
from .model.figures import ListenerStats as ListenerStats
from .model.figures import ManagerStats as ManagerStats
from .model.figures import MinuteCount as MinuteCount
from .model.figures import QueueStats as QueueStats
from .model.figures import StorageStats as StorageStats
from .model.figures import Throughput as Throughput
from .model.figures import Totals as Totals
from .model.flow_node import FlowNode as FlowNode
from .model.health import HealthReport as HealthReport
from .model.health import OverdueHandler as OverdueHandler
from .model.health import StorageStatus as StorageStatus
from .model.health import TaskHealth as TaskHealth
from .model.health import WorkerInfo as WorkerInfo
from .model.job_logs import LogEntry as LogEntry
from .model.job_logs import LogPage as LogPage
from .model.options import JobOptions as JobOptions
from .model.options import JobSpec as JobSpec
from .model.schedule import Scheduler as Scheduler
from .model.webhooks import Webhook as Webhook
from .model.webhooks import WebhookTest as WebhookTest
from .serializers import JsonSerializer as JsonSerializer
from .serializers import PickleSerializer as PickleSerializer
from .serializers import Serializer as Serializer
from .storage.memory import MemoryStorage as MemoryStorage
from .storage.sqlite.storage import SqliteStorage as SqliteStorage
from .types import ANY as ANY
from .types import Attempt as Attempt
from .types import BatchOptions as BatchOptions
from .types import Deduplication as Deduplication
from .types import DlqConfig as DlqConfig
from .types import DlqStats as DlqStats
from .types import Duration as Duration
from .types import FailureReason as FailureReason
from .types import JobCounts as JobCounts
from .types import JobState as JobState
from .types import KeepJobs as KeepJobs
from .types import LimitStatus as LimitStatus
from .types import Outcome as Outcome
from .types import RateLimit as RateLimit
from .types import Recycle as Recycle
from .types import Repeat as Repeat
from .types import Report as Report
from .types import StallConfig as StallConfig
from .types import TimelineEntry as TimelineEntry

# what an application has not asked to see is not printed either
_logging.getLogger(__name__).addHandler(_logging.NullHandler())

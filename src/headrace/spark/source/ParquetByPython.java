package headrace.spark;

import java.io.IOException;
import java.io.OutputStream;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Date;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.TaskContext;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.internal.io.SparkHadoopWriterUtils$;
import org.apache.spark.package$;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.BasicWriteJobStatsTracker;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.FileFormatWriter$;
import org.apache.spark.sql.execution.datasources.OutputWriter;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.execution.datasources.WriteFiles;
import org.apache.spark.sql.execution.datasources.WriteFilesExec;
import org.apache.spark.sql.execution.datasources.WriteFilesSpec;
import org.apache.spark.sql.execution.datasources.WriteJobDescription;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanExecBase;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import org.apache.spark.sql.execution.streaming.sinks.FileStreamSink;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.Iterator$;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction1;

/**
 * Plans the writing of Parquet files of what one source gives, as it is, by Python.
 *
 * <p>Spark's writer takes rows and puts them into columns again, value by value; it takes three quarters of the time of a
 * copy to Parquet. Python has the columns, in batches, and a writer for them. What it gives to the JVM is then not
 * messages but pieces of Parquet files, and Spark does with them what it does with files of its own writing: where they
 * are, who commits them and what is counted is all Spark's.
 *
 * <p>That is for a query that only chooses columns of the source. Where files are asked for that Python does not write, or
 * that it would write otherwise, as by settings that are not known here, Spark's writer gets rows.
 */
public final class ParquetByPython extends SparkStrategy {
  private final SparkSession session;
  private final SparkStrategy columns;
  private final byte[] function;

  public ParquetByPython(SparkSession session, SparkStrategy columns, byte[] function) {
    this.session = session;
    this.columns = columns;
    this.function = function;
  }

  public Seq apply(LogicalPlan plan) {
    Map empty = (Map) Map$.MODULE$.empty();
    SparkPlan made = null;
    if (plan instanceof WriteFiles) {
      WriteFiles write = (WriteFiles) plan;
      if (write.partitionColumns().isEmpty() && write.bucketSpec().isEmpty() && isParquet(write.fileFormat())) {
        made = this.write(write.child(), write.fileFormat(), write.options(), write.staticPartitions());
      }
    } else if (plan instanceof ReturnAnswer) {
      // The root of a plan. That of a stream does not say where its rows go; plans below it may be of no stream.
      made = this.write(((ReturnAnswer) plan).child(), new ParquetFileFormat(), empty, empty);
      if (made != null && (!(scanOf(made) instanceof ColumnsAsTheyAre.MicroBatchScan) || !this.goesToParquet())) {
        made = null;
      }
    }
    return made == null ? (Seq) Nil$.MODULE$ : (Seq) Nil$.MODULE$.$colon$colon(made);
  }

  private SparkPlan write(LogicalPlan plan, FileFormat format, Map options, Map staticPartitions) {
    Seq planned = this.columns.apply(plan);
    if (planned.size() != 1 || !onlyChooses((SparkPlan) planned.head())) {
      return null;
    }
    SparkPlan child = (SparkPlan) planned.head();
    Option none = Option.empty();
    return new WriteParquet(child, format, (Seq) Nil$.MODULE$, none, options, staticPartitions, this.function);
  }

  /** Others are made of Spark's, which may ask for other files. */
  private static boolean isParquet(Object format) {
    return format != null && format.getClass() == ParquetFileFormat.class;
  }

  /** Whether it is a stream that this is planned for, of Parquet files that are all in one folder. */
  private boolean goesToParquet() {
    String query = this.session.sparkContext().getLocalProperty(StreamExecution.QUERY_ID_KEY());
    Object running = query == null ? null : this.session.streams().get(query);
    if (!(running instanceof StreamingQueryWrapper)) {
      return false;
    }
    Object sink = ((StreamingQueryWrapper) running).streamingQuery().sink();
    if (!(sink instanceof FileStreamSink)) {
      return false;
    }
    Object folders = field(sink, "partitionColumnNames");
    return folders instanceof Seq && ((Seq) folders).isEmpty() && isParquet(field(sink, "fileFormat"));
  }

  /** What a field that is Spark's own has in it; nothing in a release in which there is none. */
  private static Object field(Object sink, String name) {
    try {
      Field field = FileStreamSink.class.getDeclaredField(name);
      field.setAccessible(true);
      return field.get(sink);
    } catch (ReflectiveOperationException error) {
      return null;
    }
  }

  private static boolean onlyChooses(SparkPlan plan) {
    for (SparkPlan each = plan; each.children().size() == 1; each = (SparkPlan) each.children().head()) {
      if (each instanceof FilterExec) {
        return false;
      }
    }
    return chosen(plan, scanOf(plan)) != null;
  }

  /** The scan below; null if there is none that can be had give something else. */
  private static SparkPlan scanOf(SparkPlan plan) {
    while (plan.children().size() == 1) {
      plan = (SparkPlan) plan.children().head();
    }
    return plan instanceof ColumnsAsTheyAre.Through ? plan : null;
  }

  /** Which of a scan's columns a plan gives, by their places; null if it gives anything else. */
  private static String chosen(SparkPlan plan, SparkPlan scan) {
    StringBuilder places = new StringBuilder();
    for (Iterator each = plan.output().iterator(); scan != null && each.hasNext(); ) {
      int place = placeOf((Attribute) each.next(), scan.output());
      if (place < 0) {
        return null;
      }
      places.append(places.length() == 0 ? "" : ",").append(place);
    }
    return scan == null ? null : places.toString();
  }

  private static int placeOf(Attribute wanted, Seq attributes) {
    for (int place = 0; place < attributes.size(); place++) {
      if (((Attribute) attributes.apply(place)).exprId().equals(wanted.exprId())) {
        return place;
      }
    }
    return -1;
  }

  /** Writes the files. */
  public static final class WriteParquet extends WriteFilesExec {
    /** What Spark sets by itself. Anything else may ask for other files than Python writes. */
    private static final List USUAL =
        Arrays.asList(
            new Object[] {
              "writer.version=PARQUET_1_0",
              "summary.metadata.level=NONE",
              "write.support.class=org.apache.spark.sql.execution.datasources.parquet.ParquetWriteSupport"
            });

    private static final List CODECS = Arrays.asList(new Object[] {"SNAPPY", "GZIP", "ZSTD", "UNCOMPRESSED"});
    private static final List TIMES = Arrays.asList(new Object[] {"INT96", "TIMESTAMP_MICROS"});

    private final transient byte[] function;

    public WriteParquet(
        SparkPlan child,
        FileFormat format,
        Seq partitionColumns,
        Option bucketSpec,
        Map options,
        Map staticPartitions,
        byte[] function) {
      super(child, format, partitionColumns, bucketSpec, options, staticPartitions);
      this.function = function;
    }

    public Seq otherCopyArgs() {
      return (Seq) Nil$.MODULE$.$colon$colon(this.function);
    }

    public WriteFilesExec withNewChildInternal(SparkPlan child) {
      return new WriteParquet(
          child,
          this.fileFormat(),
          this.partitionColumns(),
          this.bucketSpec(),
          this.options(),
          this.staticPartitions(),
          this.function);
    }

    /** Who does not see that files are to be written, as where Spark plans again while it executes, gets rows. */
    public RDD doExecute() {
      return this.child().execute();
    }

    public RDD doExecuteWrite(WriteFilesSpec spec) {
      WriteJobDescription job = spec.description();
      SparkPlan scan = scanOf(this.child());
      byte[] told = told(job, chosen(this.child(), scan), this.conf());
      if (told == null || ((DataSourceV2ScanExecBase) scan).inputPartitions().isEmpty()) {
        return super.doExecuteWrite(spec);
      }
      StructType pieces = new StructType().add("rows", DataTypes.LongType).add("piece", DataTypes.BinaryType);
      ((ColumnsAsTheyAre.Through) scan).through(this.function, pieces, told);
      WriteJobDescription same =
          new WriteJobDescription(
              job.uuid(),
              job.serializableHadoopConf(),
              new Files(job.outputWriterFactory()),
              job.allColumns(),
              job.dataColumns(),
              job.partitionColumns(),
              job.bucketSpec(),
              job.path(),
              job.customPartitionLocations(),
              job.maxRecordsPerFile(),
              job.timeZoneId(),
              job.statsTrackers());
      String tracker = SparkHadoopWriterUtils$.MODULE$.createJobTrackerID(new Date());
      ClassTag messages = ClassTag$.MODULE$.apply(WriterCommitMessage.class);
      return scan.executeColumnar().mapPartitions(new Task(same, spec.committer(), tracker), false, messages);
    }

    /** What Python is told of the files; null if it is not to write them. */
    private static byte[] told(WriteJobDescription job, String columns, SQLConf session) {
      Configuration conf = job.serializableHadoopConf().value();
      String compression = conf.get("parquet.compression", "");
      String times = conf.get("spark.sql.parquet.outputTimestampType", "");
      String schema = conf.get("org.apache.spark.sql.parquet.row.attributes");
      if (columns == null
          || schema == null
          || job.maxRecordsPerFile() > 0
          || conf.getBoolean("spark.sql.parquet.writeLegacyFormat", false)
          || !CODECS.contains(compression)
          || !TIMES.contains(times)
          || isSet(session, "datetimeRebaseModeInWrite", "LEGACY")
          || isSet(session, "int96RebaseModeInWrite", "LEGACY")
          // Who reads so takes times for local if the file is not from Spark.
          || isSet(session, "int96TimestampConversion", "true")) {
        return null;
      }
      for (Iterator each = job.statsTrackers().iterator(); each.hasNext(); ) {
        if (!(each.next() instanceof BasicWriteJobStatsTracker)) {
          return null; // It may want to see the rows.
        }
      }
      for (java.util.Iterator each = conf.getPropsWithPrefix("parquet.").entrySet().iterator(); each.hasNext(); ) {
        String setting = each.next().toString();
        if (!USUAL.contains(setting) && !setting.startsWith("compression=")) {
          return null;
        }
      }
      String version = package$.MODULE$.SPARK_VERSION_SHORT();
      String said = "\"compression\":\"" + compression + "\",\"times\":\"" + times + "\",\"version\":\"" + version + "\"";
      return ("{" + said + ",\"columns\":[" + columns + "],\"schema\":" + schema + "}").getBytes(StandardCharsets.UTF_8);
    }
  }

  private static boolean isSet(SQLConf session, String name, String value) {
    String key = "spark.sql.parquet." + name;
    return session.contains(key) && session.getConfString(key).equalsIgnoreCase(value);
  }

  /** Writes a partition as Spark does, of rows that are pieces of a file. */
  public static final class Task extends AbstractFunction1 implements Serializable {
    private static final long serialVersionUID = 1L;

    private final WriteJobDescription job;
    private final FileCommitProtocol committer;
    private final String tracker;

    Task(WriteJobDescription job, FileCommitProtocol committer, String tracker) {
      this.job = job;
      this.committer = committer;
      this.tracker = tracker;
    }

    public Object apply(Object batches) {
      TaskContext task = TaskContext.get();
      Object result =
          FileFormatWriter$.MODULE$.executeTask(
              this.job,
              this.tracker,
              task.stageId(),
              task.partitionId(),
              (int) task.taskAttemptId() & Integer.MAX_VALUE,
              this.committer,
              new Pieces((Iterator) batches, (Files) this.job.outputWriterFactory(), task.partitionId() == 0),
              Option.empty());
      return Iterator$.MODULE$.single(result);
    }
  }

  /**
   * Rows that are pieces of a file, each followed by empty ones: as many rows as are in it, for those who count them.
   *
   * <p>A piece in which no rows begin goes straight to the file, for the same reason.
   */
  static final class Pieces extends AbstractIterator {
    private static final InternalRow NOTHING = new GenericInternalRow(0);

    private final Iterator batches;
    private final Files files;

    /** Whether there is a file even if it is of no rows: one of them, so that it is seen what the columns are. */
    private boolean begun;

    private InternalRow piece;
    private int empty;

    Pieces(Iterator batches, Files files, boolean begun) {
      this.batches = batches;
      this.files = files;
      this.begun = begun;
    }

    public boolean hasNext() {
      // To the end, also of a file that is not wanted: a Python process that is not read from to its end is not used again.
      while (this.piece == null && this.empty == 0 && this.batches.hasNext()) {
        ColumnarBatch batch = (ColumnarBatch) this.batches.next();
        byte[] bytes = batch.column(1).getBinary(0);
        if (batch.numRows() > 0) {
          this.begun = true;
          this.piece = new GenericInternalRow(new Object[] {bytes});
          this.empty = batch.numRows() - 1;
        } else if (this.begun) {
          this.files.newest.write(bytes);
        }
      }
      return this.piece != null || this.empty > 0;
    }

    public Object next() {
      if (!this.hasNext()) {
        throw new NoSuchElementException();
      }
      InternalRow row = this.piece;
      if (row == null) {
        this.empty--;
        return NOTHING;
      }
      this.piece = null;
      return row;
    }
  }

  /** Makes the files that Spark's own would make, for pieces. */
  public static final class Files extends OutputWriterFactory {
    private static final long serialVersionUID = 1L;

    private final OutputWriterFactory sparks;

    /** The file of this task, which has one. */
    transient OneFile newest;

    Files(OutputWriterFactory sparks) {
      this.sparks = sparks;
    }

    public String getFileExtension(TaskAttemptContext context) {
      return this.sparks.getFileExtension(context);
    }

    public OutputWriter newInstance(String path, StructType schema, TaskAttemptContext context) {
      try {
        Path file = new Path(path);
        this.newest = new OneFile(path, file.getFileSystem(context.getConfiguration()).create(file, false));
        return this.newest;
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }

  /** A file in the making. */
  static final class OneFile extends OutputWriter {
    private final String path;
    private final OutputStream out;

    OneFile(String path, OutputStream out) {
      this.path = path;
      this.out = out;
    }

    public void write(InternalRow row) {
      if (row.numFields() > 0) {
        this.write(row.getBinary(0));
      }
    }

    void write(byte[] bytes) {
      try {
        this.out.write(bytes);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    public void close() {
      try {
        this.out.close();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    public String path() {
      return this.path;
    }
  }
}
